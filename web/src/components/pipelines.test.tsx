import { cleanup, render, screen, within } from "@testing-library/react";
import { afterEach, expect, test } from "vitest";
import type { JobPlan } from "../services/jobs";
import { aNode } from "../testing";
import { Pipelines } from "./pipelines";

afterEach(cleanup);

const stage = (first: number, number: number, nodeId: string) => ({
  first_layer: first,
  num_layers: number,
  node_index: 0,
  node_id: nodeId,
  accelerators: [0],
});

const jobPlan: JobPlan = {
  generation: 3,
  reason: "node-2 was lost",
  plan: {
    pipelines: [
      {
        stages: [stage(0, 4, "node-1"), stage(4, 6, "node-2")],
        microbatches: [0, 1, 2],
        iteration_seconds: 0.4,
        max_microbatches: 0,
      },
      {
        stages: [stage(0, 10, "node-3")],
        microbatches: [3],
        iteration_seconds: 0.4,
        max_microbatches: 0,
      },
    ],
    idle_node_ids: ["node-4"],
    iteration_seconds: 0.4,
    fault_tolerance: 1,
  },
};

test("each stage shows its layers, its node and the node's state", () => {
  const nodes = [aNode("node-1"), aNode("node-2", { state: "LOST" }), aNode("node-3")];
  render(<Pipelines jobPlan={jobPlan} nodes={nodes} />);
  const lost = screen.getByText("layers 4–9").closest("li");
  expect(lost).not.toBeNull();
  expect(within(lost as HTMLElement).getByText("node-2")).toBeTruthy();
  expect(within(lost as HTMLElement).getByText("lost")).toBeTruthy();
});

test("a pipeline says how many microbatches it runs, and the plan why it is so", () => {
  render(<Pipelines jobPlan={jobPlan} nodes={[]} />);
  expect(screen.getByText("Pipeline 0: 3 microbatches a step")).toBeTruthy();
  expect(screen.getByText("Pipeline 1: 1 microbatch a step")).toBeTruthy();
  expect(screen.getByText("Generation 3: node-2 was lost")).toBeTruthy();
  expect(screen.getByText(/1 node may be lost at once/)).toBeTruthy();
  expect(screen.getByText(/idle nodes: node-4/)).toBeTruthy();
});
