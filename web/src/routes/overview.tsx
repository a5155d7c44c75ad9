import { EventList } from "../components/event-list";
import { JobsTable } from "../components/jobs-table";
import { NodesTable } from "../components/nodes-table";
import { View } from "../components/view";
import { usePolled } from "../hooks/use-polled";
import { type ClusterEvent, listNodes, readEvents } from "../services/cluster";
import type { Log } from "../services/append-only";
import { listJobs } from "../services/jobs";

export function Overview() {
  const jobs = usePolled(["jobs"], listJobs);
  const nodes = usePolled(["nodes"], listNodes);
  const events = usePolled<Log<ClusterEvent>>(["events"], (known) => readEvents(undefined, known));
  return (
    <>
      <h1>Cluster</h1>
      <View
        title="Jobs"
        query={jobs}
        isEmpty={(list) => list.length === 0}
        emptyText="No job yet: planaria submit JOB.yaml"
      >
        {(list) => <JobsTable jobs={list} />}
      </View>
      <View
        title="Nodes"
        query={nodes}
        isEmpty={(list) => list.length === 0}
        emptyText="No node has joined yet."
      >
        {(list) => <NodesTable nodes={list} />}
      </View>
      <View
        title="Events"
        query={events}
        isEmpty={(log) => log.items.length === 0}
        emptyText="Nothing has happened yet."
      >
        {(log) => <EventList events={log.items} />}
      </View>
    </>
  );
}
