import { count, percent, seconds } from "../services/format";
import { isOver, type Job } from "../services/jobs";
import { StateBadge } from "./state-badge";

export function JobFacts({ job }: { job: Job }) {
  return (
    <>
      <dl className="facts">
        <Fact name="State">
          <StateBadge state={job.state} />
        </Fact>
        {job.waiting_reason && <Fact name="Waits for">{job.waiting_reason}</Fact>}
        {job.conditions.map((condition) => (
          <Fact key={condition.type} name="Note">
            {condition.message}, since {new Date(condition.since_time).toLocaleTimeString()}
          </Fact>
        ))}
        <Fact name="Steps">
          {count(job.step)} of {count(job.steps)}
        </Fact>
        {job.num_skipped_steps > 0 && (
          <Fact name="Skipped steps">{count(job.num_skipped_steps)}</Fact>
        )}
        <Fact name="Loss">{job.loss?.toFixed(4) ?? "—"}</Fact>
        {typeof job.evaluation_loss === "number" && (
          <Fact name="Evaluation">
            {job.evaluation_loss.toFixed(4)} after {count(job.evaluation_step ?? 0)} steps
          </Fact>
        )}
        <Fact name="Tokens/s">{job.tokens_per_second ? count(job.tokens_per_second) : "—"}</Fact>
        <Fact name="Goodput">{typeof job.goodput === "number" ? percent(job.goodput) : "—"}</Fact>
        <Fact name="Generation">{job.generation}</Fact>
        {!isOver(job) && <Fact name="Nodes it can lose at once">{job.fault_tolerance}</Fact>}
        {job.final_digest && (
          <Fact name="SHA-256 of the final parameters">
            <code className="digest">{job.final_digest}</code>
          </Fact>
        )}
      </dl>
      {job.error && (
        <p role="alert" className="problem">
          <span aria-hidden="true">✕ </span>
          {job.error.message} <code>{job.error.reason}</code>
        </p>
      )}
      <TimeShares times={job.time_seconds} />
    </>
  );
}

function Fact({ name, children }: { name: string; children: React.ReactNode }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

/** Where the wall-clock time went: every second has a name. */
function TimeShares({ times }: { times: Job["time_seconds"] }) {
  const named = Object.entries(times)
    .filter(([, duration]) => duration > 0)
    .sort(([, a], [, b]) => b - a);
  if (named.length === 0) return null;
  const total = named.reduce((sum, [, duration]) => sum + duration, 0);
  return (
    <p className="quiet">
      Time:{" "}
      {named
        .map(([name, duration]) => `${name} ${seconds(duration)} (${percent(duration / total)})`)
        .join(", ")}
    </p>
  );
}
