import { expect, test } from "vitest";
import { thin, ticks } from "./chart-scale";

test("ticks are round numbers inside the range", () => {
  expect(ticks(0, 100, 5)).toEqual([0, 20, 40, 60, 80, 100]);
  expect(ticks(0.13, 0.52, 4).map((t) => t.toFixed(1))).toEqual(["0.2", "0.3", "0.4", "0.5"]);
});

test("a range of one value has one tick", () => {
  expect(ticks(3, 3, 5)).toEqual([3]);
});

test("a short curve is drawn as it is", () => {
  const points = [1, 2, 3].map((x) => ({ x, y: x }));
  expect(thin(points, 2)).toEqual(points);
});

test("a long curve keeps its spikes and its order", () => {
  const points = Array.from({ length: 10_000 }, (_, x) => ({ x, y: x === 4321 ? 99 : x % 2 }));
  const thinned = thin(points, 50);
  expect(thinned.length).toBeLessThanOrEqual(100);
  expect(thinned).toContainEqual({ x: 4321, y: 99 });
  expect(thinned.map((p) => p.x)).toEqual(thinned.map((p) => p.x).toSorted((a, b) => a - b));
});
