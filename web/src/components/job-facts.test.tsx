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
