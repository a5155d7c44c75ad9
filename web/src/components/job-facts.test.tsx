import { cleanup, render, screen } from "@testing-library/react";
import { afterEach, expect, test } from "vitest";
import { aJob } from "../testing";
import { JobFacts } from "./job-facts";

afterEach(cleanup);

test("a job that waits says for what", () => {
  const reason = "2 of 4 nodes are free (2 replicas of 2 nodes)";
  render(<JobFacts job={aJob({ state: "PENDING", waiting_reason: reason })} />);
  expect(screen.getByText("Waits for")).toBeTruthy();
  expect(screen.getByText(reason)).toBeTruthy();
});

test("a job that runs waits for nothing", () => {
  render(<JobFacts job={aJob()} />);
  expect(screen.queryByText("Waits for")).toBeNull();
});

test("a job some of whose nodes are silent says so", () => {
  const message = "node-1 says nothing, and cannot be taken to be lost";
  const since_time = "2026-01-01T00:00:00Z";
  const condition = { type: "NODES_SILENT", message, node_ids: ["node-1"], since_time };
  render(<JobFacts job={aJob({ conditions: [condition] })} />);
  expect(screen.getByText(new RegExp(message))).toBeTruthy();
});

test("only a job that goes on survives losses", () => {
  const { rerender } = render(<JobFacts job={aJob()} />);
  expect(screen.getByText("Nodes it can lose at once")).toBeTruthy();
  for (const state of ["SUCCEEDED", "FAILED", "CANCELLED"] as const) {
    rerender(<JobFacts job={aJob({ state })} />);
    expect(screen.queryByText("Nodes it can lose at once")).toBeNull();
  }
});
