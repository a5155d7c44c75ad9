import { expect, test } from "vitest";
import { jobLink, parseRoute } from "./use-route";

test("the empty address is the cluster", () => {
  expect(parseRoute("")).toEqual({ name: "overview" });
  expect(parseRoute("#/")).toEqual({ name: "overview" });
});

test("a job's link leads to the job, whatever its id contains", () => {
  expect(parseRoute(jobLink("job-4f/2a"))).toEqual({ name: "job", jobId: "job-4f/2a" });
});

test("anything else is unknown", () => {
  expect(parseRoute("#/nodes/1/x")).toEqual({ name: "unknown" });
});
