"""A custom scheduler: gives each job the least busy nodes, and leaves half of them to others.

    planaria up --nodes 6
    python examples/scheduler.py --coordinator 127.0.0.1:50051 --token-file PATH
    planaria submit examples/job.yaml        # it says `scheduler: frugal`

When this program is late, wrong or gone, the coordinator's built-in policy decides, and an event
`scheduler_overruled` says why.
"""

import argparse
import os
import queue
from collections.abc import Iterator
from pathlib import Path

import grpc

from planaria.api.coordinator.v1.scheduler_service_pb2 import (
    Decision,
    DecisionRequest,
    NodesAnswer,
    PlanAnswer,
    Registration,
    ScheduleRequest,
)
from planaria.api.coordinator.v1.scheduler_service_pb2_grpc import SchedulerServiceStub

KEEPALIVE = (  # otherwise a stream from a coordinator whose machine is gone seems to live on
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)


def choose_nodes(request: DecisionRequest) -> list[str]:
    """Return half of the candidates, within the job's limits: those with the fewest engines."""
    question = request.nodes_question
    if question.min_nodes == 0:  # the job trains already and could only grow
        return []
    num_engines = {node.id: len(node.engines) for node in request.nodes}
    least_busy = sorted(question.candidate_node_ids, key=lambda id_: (num_engines[id_], id_))
    size = max(question.min_nodes, min(question.max_nodes, len(least_busy) // 2))
    return least_busy[:size] if size <= len(least_busy) else []  # none: the job waits


def decide(request: DecisionRequest) -> Decision:
    """Answer a question; about plans, agree with the planner."""
    if request.WhichOneof("question") == "nodes_question":
        answer = NodesAnswer(node_ids=choose_nodes(request))
        print(f"{request.job.name} gets {', '.join(answer.node_ids) or 'no more'}", flush=True)
        return Decision(decision_id=request.decision_id, nodes_answer=answer)
    return Decision(decision_id=request.decision_id, plan_answer=PlanAnswer())


def run(coordinator: str, name: str, token: str) -> None:
    """Register, then answer questions until the coordinator ends the session."""
    outgoing: queue.SimpleQueue[ScheduleRequest] = queue.SimpleQueue()
    outgoing.put(ScheduleRequest(registration=Registration(name=name)))
    requests: Iterator[ScheduleRequest] = iter(outgoing.get, None)
    with grpc.insecure_channel(coordinator, options=KEEPALIVE) as channel:
        metadata = (("authorization", f"Bearer {token}"),)
        for response in SchedulerServiceStub(channel).Schedule(requests, metadata=metadata):
            if response.HasField("registered"):
                print(f"registered as {name}", flush=True)
            else:
                outgoing.put(ScheduleRequest(decision=decide(response.decision_request)))


def main() -> None:
    parser = argparse.ArgumentParser(description="A scheduler that is frugal with nodes.")
    parser.add_argument("--coordinator", default="127.0.0.1:50051", help="gRPC HOST:PORT")
    parser.add_argument("--name", default="frugal", help="what job files give in `scheduler`")
    parser.add_argument("--token-file", type=Path, help="default: the variable PLANARIA_TOKEN")
    options = parser.parse_args()
    token = options.token_file.read_text() if options.token_file else os.environ["PLANARIA_TOKEN"]
    run(options.coordinator, options.name, token.strip())


if __name__ == "__main__":
    main()
