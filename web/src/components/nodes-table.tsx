import { useNow } from "../hooks/use-now";
import { jobLink } from "../hooks/use-route";
import type { Node } from "../services/cluster";
import { age } from "../services/format";
import { StateBadge } from "./state-badge";

export function NodesTable({ nodes }: { nodes: readonly Node[] }) {
  const now = useNow();
  return (
    <table>
      <thead>
        <tr>
          <th scope="col">Node</th>
          <th scope="col">State</th>
          <th scope="col">Accelerators</th>
          <th scope="col">Engines</th>
          <th scope="col">Heartbeat</th>
        </tr>
      </thead>
      <tbody>
        {nodes.map((node) => (
          <tr key={node.id}>
            <th scope="row">{node.id}</th>
            <td>
              <StateBadge state={node.state} />
              {node.silent_since_time &&
                ` silent for ${age(Date.parse(node.silent_since_time), now)}`}
            </td>
            <td>
              {node.num_accelerators} {node.accelerator_kind}
            </td>
            <td>
              <Engines engines={node.engines} />
            </td>
            <td>
              {node.heartbeat_time ? `${age(Date.parse(node.heartbeat_time), now)} ago` : "—"}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Engines({ engines }: { engines: Node["engines"] }) {
  if (engines.length === 0) return "none";
  return (
    <ul className="plain">
      {engines.map((engine) => (
        <li key={engine.id}>
          {engine.state.toLowerCase()} for <a href={jobLink(engine.job_id)}>{engine.job_id}</a>
        </li>
      ))}
    </ul>
  );
}
