import { expect, test } from "vitest";
import { age, bytes, layers, seconds } from "./format";

test.each([
  [0.034, "34 ms"],
  [1.25, "1.3 s"],
  [90, "1.5 min"],
  [5400, "1.5 h"],
])("%f seconds read %s", (value, text) => {
  expect(seconds(value)).toBe(text);
});

test.each([
  [0, "0 B"],
  [999, "999 B"],
  [1_500, "1.5 kB"],
  [3_400_000, "3.4 MB"],
  [2e15, "2000.0 TB"],
])("%d bytes read %s", (value, text) => {
  expect(bytes(value)).toBe(text);
});

test("an age never runs backwards, even when the clocks disagree", () => {
  expect(age(10_000, 22_400)).toBe("12 s");
  expect(age(22_400, 10_000)).toBe("0 s");
  expect(age(0, 600_000)).toBe("10 min");
});

test("layers are named by their first and last", () => {
  expect(layers(3, 1)).toBe("layer 3");
  expect(layers(3, 5)).toBe("layers 3–7");
});
