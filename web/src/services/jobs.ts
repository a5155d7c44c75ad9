/** Jobs, their plans, steps and recoveries. */
import { type Log, readLog } from "./append-only";
import { client, unwrap } from "./client";
import type { paths } from "./schema";

type Body<P extends keyof paths> = paths[P] extends {
  get: { responses: { 200: { content: { "application/json": infer B } } } };
}
  ? B
  : never;

export type Job = Body<"/api/v1/jobs/{job_id}">;
export type JobPlan = Body<"/api/v1/jobs/{job_id}/plan">;
export type Plan = NonNullable<JobPlan["plan"]>;
export type Pipeline = Plan["pipelines"][number];
export type Stage = Pipeline["stages"][number];
export type StepMetrics = Body<"/api/v1/jobs/{job_id}/metrics">["metrics"][number];
export type Recovery = Body<"/api/v1/jobs/{job_id}/recoveries">["recoveries"][number];

/** Whether a job has ended, one way or another. */
export function isOver(job: Job): boolean {
  return job.state === "SUCCEEDED" || job.state === "FAILED" || job.state === "CANCELLED";
}

const byId = (jobId: string) => ({ path: { job_id: jobId } });

/** The newest jobs: one page. */
export async function listJobs(): Promise<Job[]> {
  return (await unwrap(client.GET("/api/v1/jobs"))).jobs;
}

export function getJob(jobId: string): Promise<Job> {
  return unwrap(client.GET("/api/v1/jobs/{job_id}", { params: byId(jobId) }));
}

export function getPlan(jobId: string): Promise<JobPlan> {
  return unwrap(client.GET("/api/v1/jobs/{job_id}/plan", { params: byId(jobId) }));
}

export function readMetrics(jobId: string, known?: Log<StepMetrics>): Promise<Log<StepMetrics>> {
  return readLog(async (token) => {
    const params = { ...byId(jobId), query: { page_token: token } };
    const page = await unwrap(client.GET("/api/v1/jobs/{job_id}/metrics", { params }));
    return { items: page.metrics, nextToken: page.next_page_token };
  }, known);
}

export function readRecoveries(jobId: string, known?: Log<Recovery>): Promise<Log<Recovery>> {
  return readLog(async (token) => {
    const params = { ...byId(jobId), query: { page_token: token } };
    const page = await unwrap(client.GET("/api/v1/jobs/{job_id}/recoveries", { params }));
    return { items: page.recoveries, nextToken: page.next_page_token };
  }, known);
}
