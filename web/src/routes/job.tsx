import { EventList } from "../components/event-list";
import { JobFacts } from "../components/job-facts";
import { LossChart } from "../components/loss-chart";
import { Pipelines } from "../components/pipelines";
import { Recoveries } from "../components/recoveries";
import { View } from "../components/view";
import { usePolled } from "../hooks/use-polled";
import type { Log } from "../services/append-only";
import { type ClusterEvent, listNodes, readEvents } from "../services/cluster";
import {
  getJob,
  getPlan,
  readMetrics,
  readRecoveries,
  type Recovery,
  type StepMetrics,
} from "../services/jobs";

const isEmptyLog = (log: Log<unknown>) => log.items.length === 0;

export function JobRoute({ jobId }: { jobId: string }) {
  const job = usePolled(["jobs", jobId], () => getJob(jobId));
  return (
    <>
      <p>
        <a href="#/">← Cluster</a>
      </p>
      <h1>
        {job.data?.name ?? "Job"} <span className="quiet">{jobId}</span>
      </h1>
      <View title="Progress" query={job} isEmpty={() => false} emptyText="">
        {(data) => <JobFacts job={data} />}
      </View>
      <PlanView jobId={jobId} />
      <History jobId={jobId} />
    </>
  );
}

function PlanView({ jobId }: { jobId: string }) {
  const plan = usePolled(["jobs", jobId, "plan"], () => getPlan(jobId));
  const nodes = usePolled(["nodes"], listNodes);
  return (
    <View
      title="Pipelines"
      query={plan}
      isEmpty={(data) => !data.plan}
      emptyText="No plan yet: the job waits for nodes."
    >
      {(data) => <Pipelines jobPlan={data} nodes={nodes.data ?? []} />}
    </View>
  );
}

function History({ jobId }: { jobId: string }) {
  const metrics = usePolled<Log<StepMetrics>>(["jobs", jobId, "metrics"], (known) =>
    readMetrics(jobId, known),
  );
  const recoveries = usePolled<Log<Recovery>>(["jobs", jobId, "recoveries"], (known) =>
    readRecoveries(jobId, known),
  );
  const events = usePolled<Log<ClusterEvent>>(["jobs", jobId, "events"], (known) =>
    readEvents(jobId, known),
  );
  return (
    <>
      <View title="Loss" query={metrics} isEmpty={isEmptyLog} emptyText="No step is committed yet.">
        {(log) => <LossChart metrics={log.items} />}
      </View>
      <View
        title="Recoveries"
        query={recoveries}
        isEmpty={isEmptyLog}
        emptyText="Nothing had to be recovered."
      >
        {(log) => <Recoveries recoveries={log.items} />}
      </View>
      <View title="Events" query={events} isEmpty={isEmptyLog} emptyText="Nothing happened yet.">
        {(log) => <EventList events={log.items} />}
      </View>
    </>
  );
}
