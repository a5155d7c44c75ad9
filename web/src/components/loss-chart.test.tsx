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

test("a new generation is marked where it took over", () => {
  render(<LossChart metrics={[aStep(0), aStep(1, { generation: 4 })]} />);
  expect(screen.getByText("g4")).toBeTruthy();
});

test("a single step, and steps of one loss, can be drawn", () => {
  const { container } = render(<LossChart metrics={[aStep(7, { loss: 2 })]} />);
  expect(container.innerHTML).not.toContain("NaN");
  cleanup();
  const flat = render(<LossChart metrics={[aStep(0, { loss: 2 }), aStep(1, { loss: 2 })]} />);
  expect(flat.container.innerHTML).not.toContain("NaN");
});
