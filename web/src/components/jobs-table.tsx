import { jobLink } from "../hooks/use-route";
import { count } from "../services/format";
import type { Job } from "../services/jobs";
import { StateBadge } from "./state-badge";

export function JobsTable({ jobs }: { jobs: readonly Job[] }) {
  return (
    <table>
      <thead>
        <tr>
          <th scope="col">Job</th>
          <th scope="col">State</th>
          <th scope="col">Steps</th>
          <th scope="col">Loss</th>
          <th scope="col">Tokens/s</th>
          <th scope="col">Generation</th>
        </tr>
      </thead>
      <tbody>
        {jobs.map((job) => (
          <tr key={job.id}>
            <th scope="row">
              <a href={jobLink(job.id)}>{job.name}</a> <span className="quiet">{job.id}</span>
            </th>
            <td>
              <StateBadge state={job.state} />
            </td>
            <td>
              <progress
                aria-label={`steps of ${job.name}`}
                value={job.step}
                max={Math.max(1, job.steps)}
              />{" "}
              {count(job.step)} of {count(job.steps)}
            </td>
            <td>{job.loss?.toFixed(4) ?? "—"}</td>
            <td>{count(job.tokens_per_second)}</td>
            <td>{job.generation}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
