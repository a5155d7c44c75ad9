import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { getJob, listJobs } from "./jobs";
import { writeToken } from "./token";

const answer = (httpStatus: number, body: unknown) =>
  vi.fn<typeof fetch>(() =>
    Promise.resolve(
      new Response(JSON.stringify(body), {
        status: httpStatus,
        headers: { "Content-Type": "application/json" },
      }),
    ),
  );

beforeEach(() => {
  window.sessionStorage.clear();
});

afterEach(() => {
  vi.unstubAllGlobals();
});

test("a refusal is told in the coordinator's own words", async () => {
  const problem = { title: "Not found", detail: "there is no job job-9", reason: "JOB_NOT_FOUND" };
  vi.stubGlobal("fetch", answer(404, problem));
  await expect(getJob("job-9")).rejects.toMatchObject({
    httpStatus: 404,
    reason: "JOB_NOT_FOUND",
    message: "there is no job job-9",
  });
});

test("a coordinator that is away is told plainly", async () => {
  vi.stubGlobal("fetch", () => Promise.reject(new TypeError("Failed to fetch")));
  await expect(listJobs()).rejects.toThrow("the coordinator does not answer");
});

test("the token is sent when there is one, and only then", async () => {
  const fetched = answer(200, { jobs: [], next_page_token: "" });
  vi.stubGlobal("fetch", fetched);
  await listJobs();
  writeToken("secret");
  await listJobs();
  const sent = fetched.mock.calls.map(([request]) =>
    (request as Request).headers.get("Authorization"),
  );
  expect(sent).toEqual([null, "Bearer secret"]);
});
