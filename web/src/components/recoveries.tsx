import { between, bytes, clock, count, seconds } from "../services/format";
import type { Recovery } from "../services/jobs";

const join = (names: readonly string[]) => (names.length > 0 ? names.join(", ") : "—");

/** What each change of plan cost, the newest first. */
export function Recoveries({ recoveries }: { recoveries: readonly Recovery[] }) {
  return (
    <table>
      <thead>
        <tr>
          <th scope="col">When</th>
          <th scope="col">Cause</th>
          <th scope="col">Lost</th>
          <th scope="col">Joined</th>
          <th scope="col">Nodes of the pipelines</th>
          <th scope="col">Copied</th>
          <th scope="col">Redone</th>
          <th scope="col">Pause</th>
          <th scope="col">All in place</th>
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
      <td>{recovery.end_time ? seconds(recovery.pause_seconds) : "goes on"}</td>
      <td>{recovery.end_time ? seconds(between(recovery.start_time, recovery.end_time)) : "—"}</td>
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
