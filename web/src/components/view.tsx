/** The frame of every view: loading, empty, stale and error look the same everywhere. */
import type { UseQueryResult } from "@tanstack/react-query";
import { type ReactNode, useId } from "react";
import { usePolling } from "../hooks/polling";
import { useNow } from "../hooks/use-now";
import { ApiError } from "../services/client";
import { age } from "../services/format";
import { TokenForm } from "./token-form";

interface ViewProps<T> {
  title: string;
  query: UseQueryResult<T>;
  /** Says whether there is nothing to show, and `emptyText` what that means. */
  isEmpty: (data: T) => boolean;
  emptyText: string;
  children: (data: T) => ReactNode;
}

export function View<T>({ title, query, isEmpty, emptyText, children }: ViewProps<T>) {
  const heading = useId();
  return (
    <section aria-labelledby={heading} className="view">
      <header className="view-header">
        <h2 id={heading}>{title}</h2>
        {query.data !== undefined && (
          <Freshness updatedAtMs={query.dataUpdatedAt} error={query.error} />
        )}
      </header>
      <Body query={query} isEmpty={isEmpty} emptyText={emptyText}>
        {children}
      </Body>
    </section>
  );
}

function Body<T>({ query, isEmpty, emptyText, children }: Omit<ViewProps<T>, "title">) {
  if (query.data !== undefined) {
    return isEmpty(query.data) ? <p className="quiet">{emptyText}</p> : children(query.data);
  }
  if (query.error === null) return <p className="quiet">Loading…</p>;
  if (query.error instanceof ApiError && query.error.httpStatus === 401) return <TokenForm />;
  return (
    <div role="alert" className="problem">
      <p>
        <span aria-hidden="true">✕ </span>
        {query.error.message}
      </p>
      <button type="button" onClick={() => void query.refetch()}>
        Try again
      </button>
    </div>
  );
}

/** Silent while the data is young; then says how old it is, and why. */
function Freshness({ updatedAtMs, error }: { updatedAtMs: number; error: Error | null }) {
  const { seconds, paused } = usePolling();
  const now = useNow();
  const old = now - updatedAtMs > Math.max(5, 3 * seconds) * 1000;
  if (!old && error === null) return null;
  const reason = error !== null ? `${error.message}; ` : paused ? "paused; " : "";
  return (
    <p className="stale">
      <span aria-hidden="true">⚠ </span>
      {reason}last update {age(updatedAtMs, now)} ago
    </p>
  );
}
