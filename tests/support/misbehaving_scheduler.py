"""A custom scheduler that accepts a job's first plan, and misbehaves when one is to follow it.

python tests/support/misbehaving_scheduler.py HOST:PORT NAME TOKEN_FILE BEHAVIOUR
"""

import os
import queue
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc

from planaria.api.common.v1.plan_pb2 import Plan
from planaria.api.coordinator.v1.scheduler_service_pb2 import (
    Decision,
    DecisionRequest,
    NodesAnswer,
    PlanAnswer,
    PlanQuestion,
    Registration,
    ScheduleRequest,
    ScheduleResponse,
)

SCHEDULE = "/planaria.api.coordinator.v1.SchedulerService/Schedule"


def spoil(question: PlanQuestion, rule: str) -> Plan:
    """Return the proposal with one rule broken."""
    plan = Plan()
    plan.CopyFrom(question.proposal)
    first = plan.pipelines[0]
    match rule:
        case "layers":
            first.stages[0].first_layer = 1
        case "accelerator":
            first.stages[1].node_id = first.stages[0].node_id
        case "lost node":
            used = {stage.node_id for p in question.current.pipelines for stage in p.stages}
            first.stages[0].node_id = min(used - set(question.available_node_ids))
        case "microbatches":
            del first.microbatches[0]
        case "memory":
            for pipeline in plan.pipelines:
                num_layers = sum(stage.num_layers for stage in pipeline.stages)
                del pipeline.stages[1:]
                pipeline.stages[0].num_layers = num_layers
        case "fault tolerance":
            first.microbatches[:] = range(question.num_microbatches)
            del plan.pipelines[1:]
        case _:
            raise ValueError(rule)
    return plan


def answers(request: DecisionRequest, behaviour: str) -> Iterator[bytes]:
    """Yield what to send."""
    decision_id = request.decision_id
    if request.WhichOneof("question") == "nodes_question":
        asked = request.nodes_question
        nodes = NodesAnswer(node_ids=asked.candidate_node_ids[: asked.max_nodes])
        yield packed(Decision(decision_id=decision_id, nodes_answer=nodes))
        return
    agreed = packed(Decision(decision_id=decision_id, plan_answer=PlanAnswer()))
    if not request.plan_question.HasField("current"):
        yield agreed
        return
    print(f"asked: {behaviour}", flush=True)
    match behaviour:
        case "late":
            time.sleep(2 * request.deadline.ToTimedelta().total_seconds())
            yield agreed
        case "hang":
            while True:
                signal.pause()
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "garbage":
            yield b"\xff" * 100
        case "double":
            spoilt = PlanAnswer(plan=spoil(request.plan_question, "layers"))
            yield agreed
            yield packed(Decision(decision_id=decision_id, plan_answer=spoilt))
            yield packed(Decision(decision_id="another", plan_answer=spoilt))
        case rule:
            answer = PlanAnswer(plan=spoil(request.plan_question, rule))
            yield packed(Decision(decision_id=decision_id, plan_answer=answer))


def packed(decision: Decision) -> bytes:
    return ScheduleRequest(decision=decision).SerializeToString()


def main() -> None:
    coordinator, name, token_file, behaviour = sys.argv[1:]
    outgoing: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    registration = ScheduleRequest(registration=Registration(name=name))
    outgoing.put(registration.SerializeToString())
    token = Path(token_file).read_text().strip()
    with grpc.insecure_channel(coordinator) as channel:
        schedule = channel.stream_stream(
            SCHEDULE,
            request_serializer=bytes,
            response_deserializer=ScheduleResponse.FromString,
        )
        metadata = (("authorization", f"Bearer {token}"),)
        for response in schedule(iter(outgoing.get, None), metadata=metadata):
            if response.HasField("registered"):
                print(f"registered as {name}", flush=True)
                continue
            for answer in answers(response.decision_request, behaviour):
                outgoing.put(answer)


if __name__ == "__main__":
    main()
