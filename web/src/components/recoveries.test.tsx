import { cleanup, render, screen, within } from "@testing-library/react";
import { afterEach, expect, test } from "vitest";
import type { Recovery } from "../services/jobs";
import { Recoveries } from "./recoveries";

afterEach(cleanup);

const recovery = (changes: Partial<Recovery>): Recovery => ({
  id: 1,
  cause: "node_lost",
  nodes_lost: ["node-3"],
  nodes_joined: [],
  generation: 2,
  redone_microbatches: 4,
  copied_bytes: 0,
  phases: [],
  detect_seconds: 0.012,
  fence_seconds: 0.03,
  resume_seconds: 0.08,
  regrow_seconds: 1.25,
  idle_seconds: 0,
  lost_seconds: null,
  lost_accelerator_seconds: {},
  start_time: "2026-01-01T12:00:00Z",
  end_time: "2026-01-01T12:00:01Z",
  pipeline_sizes_before: [2, 2],
  pipeline_sizes_after: [3],
  reason: "",
  ...changes,
});

/** The cells of a row by the names of their columns. */
function cells(row: HTMLElement | undefined): Record<string, string | null> {
  const names = screen.getAllByRole("columnheader").map((each) => each.textContent);
  const found = Array.from(row?.children ?? []).map((each) => each.textContent);
  return Object.fromEntries(names.map((name, index) => [name, found[index] ?? null]));
}

test("each figure is in the column of its name, and an unknown one is no zero", () => {
  render(<Recoveries recoveries={[recovery({})]} />);
  expect(cells(screen.getAllByRole("row")[1])).toMatchObject({
    Detect: "12 ms",
    Fence: "30 ms",
    Resume: "80 ms",
    Regrow: "1.3 s",
    Idle: "0 ms",
    Lost: "—",
  });
});

test("the newest recovery comes first", () => {
  render(<Recoveries recoveries={[recovery({}), recovery({ id: 2, cause: "node_joined" })]} />);
  const [, newest] = screen.getAllByRole("row");
  expect(within(newest as HTMLElement).getByText("node joined")).toBeTruthy();
});
