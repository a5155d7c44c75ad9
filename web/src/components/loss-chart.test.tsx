import { cleanup, render, screen } from "@testing-library/react";
import { afterEach, expect, test } from "vitest";
import { aStep } from "../testing";
import { LossChart } from "./loss-chart";

afterEach(cleanup);

test("the curve says in words where it begins and ends", () => {
  const metrics = [aStep(0), aStep(50), aStep(100, { generation: 2 })];
  render(<LossChart metrics={metrics} />);
  expect(screen.getByRole("img").getAttribute("aria-label")).toBe(
    "Loss from 5.0000 at step 0 to 4.0000 at step 100; 1 change of plan",
  );
});

test("evaluations have a curve of their own, and the last one is behind the last step", () => {
  const metrics = [
    aStep(0, { evaluation_loss: 5.5 }),
    aStep(1),
    aStep(2, { loss: null, evaluation_loss: 5.25 }),
  ];
  const { container } = render(<LossChart metrics={metrics} />);
  expect(screen.getByRole("img").getAttribute("aria-label")).toBe(
    "Loss from 5.0000 at step 0 to 4.9900 at step 1; 0 changes of plan; " +
      "evaluation 5.2500 after 2 steps",
  );
  expect(container.querySelectorAll("polyline.evaluation")).toHaveLength(1);
  expect(container.innerHTML).not.toContain("NaN");
  cleanup();
  render(<LossChart metrics={[aStep(0)]} />);
  expect(screen.queryByText("- - evaluation")).toBeNull();
});

test("a new generation is marked where it took over", () => {
  render(<LossChart metrics={[aStep(0), aStep(1, { generation: 4 })]} />);
  expect(screen.getByText("g4")).toBeTruthy();
});

test("of generations close together the last one has its name", () => {
  const metrics = [
    aStep(0),
    aStep(1, { generation: 2 }),
    aStep(2, { generation: 3 }),
    aStep(300, { generation: 3 }),
  ];
  const { container } = render(<LossChart metrics={metrics} />);
  expect(container.querySelectorAll(".generation line")).toHaveLength(2);
  expect(screen.queryByText("g2")).toBeNull();
  expect(screen.getByText("g3")).toBeTruthy();
});

test("a single step, and steps of one loss, can be drawn", () => {
  const { container } = render(<LossChart metrics={[aStep(7, { loss: 2 })]} />);
  expect(container.innerHTML).not.toContain("NaN");
  cleanup();
  const flat = render(<LossChart metrics={[aStep(0, { loss: 2 }), aStep(1, { loss: 2 })]} />);
  expect(flat.container.innerHTML).not.toContain("NaN");
});
