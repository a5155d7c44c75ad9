/** Which layers are on which node: a row for each replica of the model, a box for each stage. */
import type { Node } from "../services/cluster";
import { layers, seconds } from "../services/format";
import type { JobPlan, Pipeline, Plan, Stage } from "../services/jobs";
import { StateBadge } from "./state-badge";

type NodeStates = ReadonlyMap<string, Node["state"]>;

interface PipelinesProps {
  jobPlan: JobPlan;
  nodes: readonly Node[];
}

export function Pipelines({ jobPlan, nodes }: PipelinesProps) {
  const states: NodeStates = new Map(nodes.map((node) => [node.id, node.state]));
  const { plan } = jobPlan;
  if (!plan) return <p className="quiet">No plan yet.</p>;
  return (
    <>
      <p>
        Generation {jobPlan.generation}
        {jobPlan.reason && `: ${jobPlan.reason}`}
      </p>
      <ol className="pipelines">
        {plan.pipelines.map((pipeline, index) => (
          <PipelineRow key={index} number={index} pipeline={pipeline} states={states} />
        ))}
      </ol>
      <PlanSummary plan={plan} />
    </>
  );
}

function PipelineRow(props: { number: number; pipeline: Pipeline; states: NodeStates }) {
  const { stages, microbatches } = props.pipeline;
  return (
    <li>
      <p className="pipeline-name">
        Pipeline {props.number}: {microbatches.length}{" "}
        {microbatches.length === 1 ? "microbatch" : "microbatches"} a step
      </p>
      <ol className="stages">
        {stages.map((stage) => (
          <StageBox key={stage.first_layer} stage={stage} state={props.states.get(stage.node_id)} />
        ))}
      </ol>
    </li>
  );
}

function StageBox({ stage, state }: { stage: Stage; state: Node["state"] | undefined }) {
  return (
    <li
      className={`stage ${state === "LOST" ? "lost" : ""}`}
      style={{ flexGrow: stage.num_layers }}
    >
      <strong>{layers(stage.first_layer, stage.num_layers)}</strong>
      <span>{stage.node_id}</span>
      {state ? <StateBadge state={state} /> : <span className="quiet">unknown node</span>}
    </li>
  );
}

function PlanSummary({ plan }: { plan: Plan }) {
  const nodes = plan.fault_tolerance === 1 ? "node" : "nodes";
  const idle = plan.idle_node_ids.length > 0 ? plan.idle_node_ids.join(", ") : "none";
  return (
    <p className="quiet">
      {plan.fault_tolerance} {nodes} may be lost at once; predicted step{" "}
      {seconds(plan.iteration_seconds)}; idle nodes: {idle}.
    </p>
  );
}
