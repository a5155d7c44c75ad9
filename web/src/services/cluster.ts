/** Nodes, and what happened. */
import { type Log, readLog } from "./append-only";
import { ApiError, client, unwrap } from "./client";
import type { paths } from "./schema";

type Nodes = paths["/api/v1/nodes"]["get"]["responses"][200]["content"]["application/json"];
type Events = paths["/api/v1/events"]["get"]["responses"][200]["content"]["application/json"];

export type Node = Nodes["nodes"][number];
export type ClusterEvent = Events["events"][number];

export async function listNodes(): Promise<Node[]> {
  return (await unwrap(client.GET("/api/v1/nodes"))).nodes;
}

/** The events of one job, or of the whole cluster. */
export function readEvents(
  jobId: string | undefined,
  known?: Log<ClusterEvent>,
): Promise<Log<ClusterEvent>> {
  return readLog(async (token) => {
    const query = { page_token: token };
    const page = await unwrap(
      jobId === undefined
        ? client.GET("/api/v1/events", { params: { query } })
        : client.GET("/api/v1/jobs/{job_id}/events", {
            params: { path: { job_id: jobId }, query },
          }),
    );
    // The same path also serves an endless stream, to those who ask for one.
    if (typeof page === "string") throw new ApiError(200, "UNKNOWN", "events came as a stream");
    return { items: page.events, nextToken: page.next_page_token };
  }, known);
}
