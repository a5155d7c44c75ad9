/** The one place that talks HTTP: typed by the coordinator's OpenAPI file. */
import createClient from "openapi-fetch";
import type { paths } from "./schema";
import { readToken } from "./token";

/** An answer that is not the wanted one, with the coordinator's reason in words (RFC 9457). */
export class ApiError extends Error {
  constructor(
    readonly httpStatus: number,
    readonly reason: string,
    message: string,
  ) {
    super(message);
    this.name = "ApiError";
  }
}

export const client = createClient<paths>({
  baseUrl: window.location.origin,
  fetch: (request) => fetch(request), // looked up at each call, so that tests can replace it
});

client.use({
  onRequest({ request }) {
    const token = readToken();
    if (token !== null) request.headers.set("Authorization", `Bearer ${token}`);
    return request;
  },
});

interface Answer<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

function text(problem: unknown, field: string): string | undefined {
  if (typeof problem !== "object" || problem === null) return undefined;
  const value = (problem as Record<string, unknown>)[field];
  return typeof value === "string" ? value : undefined;
}

/** Wait for an answer and return its body. Throws ApiError for every other outcome. */
export async function unwrap<T>(answer: Promise<Answer<T>>): Promise<T> {
  let settled: Answer<T>;
  try {
    settled = await answer;
  } catch {
    throw new ApiError(0, "UNREACHABLE", "the coordinator does not answer");
  }
  const { data, error, response } = settled;
  if (data !== undefined && response.ok) return data;
  const detail = text(error, "detail") ?? text(error, "title") ?? `HTTP ${response.status}`;
  throw new ApiError(response.status, text(error, "reason") ?? "UNKNOWN", detail);
}
