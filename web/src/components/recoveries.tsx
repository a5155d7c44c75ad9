import { bytes, clock, count, seconds } from "../services/format";
import type { Recovery } from "../services/jobs";

const join = (names: readonly string[]) => (names.length > 0 ? names.join(", ") : "—");

const known = (value: number | null) => (value === null ? "—" : seconds(value));

/** Figures in the order in which they pass; the first four count from the fault. */
const FIGURES = [
  ["Detect", "detect_seconds", "From the fault until the loss was noticed"],
  ["Fence", "fence_seconds", "From the fault until the last survivor was fenced"],
  ["Resume", "resume_seconds", "From the fault until all survivors took part in the step again"],
  ["Regrow", "regrow_seconds", "From the fault until every survivor had a pipeline again"],
  ["Idle", "idle_seconds", "How long nobody computed"],
  ["Lost", "lost_seconds", "The step that was hit minus the median of the next whole ones"],
] as const;

/** What each change of plan cost, the newest first. */
export function Recoveries({ recoveries }: { recoveries: readonly Recovery[] }) {
  return (
    <table>
      <thead>
        <tr>
          <th scope="col">When</th>
          <th scope="col">Cause</th>
          <th scope="col">Nodes lost</th>
          <th scope="col">Nodes joined</th>
          <th scope="col">Nodes of the pipelines</th>
          <th scope="col">Copied</th>
          <th scope="col">Redone</th>
          {FIGURES.map(([name, , meaning]) => (
            <th key={name} scope="col" title={meaning}>
              {name}
            </th>
          ))}
          <th scope="col">Phases</th>
        </tr>
      </thead>
      <tbody>
        {recoveries.toReversed().map((recovery) => (
          <Row key={recovery.id} recovery={recovery} />
        ))}
      </tbody>
    </table>
  );
}

function Row({ recovery }: { recovery: Recovery }) {
  return (
    <tr>
      <th scope="row">
        <time dateTime={recovery.start_time}>{clock(recovery.start_time)}</time>{" "}
        <span className="quiet">g{recovery.generation}</span>
      </th>
      <td>{recovery.cause.replaceAll("_", " ")}</td>
      <td>{join(recovery.nodes_lost)}</td>
      <td>{join(recovery.nodes_joined)}</td>
      <td>
        {join(recovery.pipeline_sizes_before.map(String))} →{" "}
        {join(recovery.pipeline_sizes_after.map(String))}
      </td>
      <td>{bytes(recovery.copied_bytes)}</td>
      <td>
        {count(recovery.redone_microbatches)}{" "}
        {recovery.redone_microbatches === 1 ? "microbatch" : "microbatches"}
      </td>
      {FIGURES.map(([name, field]) => (
        <td key={name}>{known(recovery[field])}</td>
      ))}
      <td>
        <ul className="plain">
          {recovery.phases.map((phase) => (
            <li key={phase.name}>
              {phase.name} {seconds(phase.duration_seconds)}
            </li>
          ))}
        </ul>
      </td>
    </tr>
  );
}
