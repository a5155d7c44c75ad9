import { useSyncExternalStore } from "react";

/** Where the reader is: kept behind the `#`, so that any static server can serve the page. */
export type Route = { name: "overview" } | { name: "job"; jobId: string } | { name: "unknown" };

export function parseRoute(hash: string): Route {
  const path = hash.replace(/^#/, "");
  if (path === "" || path === "/") return { name: "overview" };
  const job = /^\/jobs\/([^/]+)$/.exec(path);
  if (job?.[1] !== undefined) return { name: "job", jobId: decodeURIComponent(job[1]) };
  return { name: "unknown" };
}

export function jobLink(jobId: string): string {
  return `#/jobs/${encodeURIComponent(jobId)}`;
}

function subscribe(onChange: () => void): () => void {
  window.addEventListener("hashchange", onChange);
  return () => {
    window.removeEventListener("hashchange", onChange);
  };
}

export function useRoute(): Route {
  return parseRoute(useSyncExternalStore(subscribe, () => window.location.hash));
}
