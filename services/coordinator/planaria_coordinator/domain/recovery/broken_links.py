"""Engines that cannot reach each other: whom to believe, and which nodes to do without.

A report accuses a link. It is believed as a loss only where enough others say the same; a link that
stays broken between two engines that live is avoided, by leaving out one of its nodes for a while.
"""

from collections.abc import Collection

from planaria_coordinator.domain.engines.links import (
    Choice,
    Edge,
    FailedLink,
    LinkFailure,
    looks_ended,
    nodes_to_leave_out,
)
from planaria_coordinator.domain.job.cordons import cordon
from planaria_coordinator.domain.job.job_run import Disturbance, JobRun
from planaria_coordinator.domain.job.signals import EngineLost, LinkFailed
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.placement.placement import Placement
from planaria_coordinator.domain.placement.replicas import (
    holdings_of_placement,
    layers_without_replica,
)
from planaria_coordinator.domain.recovery.lost_engines import engine_lost, note_loss


def link_failed(turn: Turn, signal: LinkFailed) -> None:
    """Note what an engine says; believe at once what enough of them say."""
    run = turn.run
    if signal.engine_id not in run.engines or signal.peer_engine_id not in run.engines:
        return
    link = FailedLink(
        engine_id=signal.engine_id,
        peer_engine_id=signal.peer_engine_id,
        failure=signal.failure,
        direction=signal.direction,
        since_seconds=turn.now.seconds,
    )
    turn.note_run(failed_links=(*_without(run.failed_links, link), link))
    if not _matters(run, link):
        return
    if _looks_ended(turn.run, link.peer_engine_id):
        lost = EngineLost(
            engine_id=link.peer_engine_id,
            fault_time=signal.fault_time,
            reason=link.words,
            process_ended=False,
        )
        engine_lost(turn, lost)
    elif run.trains and run.disturbance is None:
        # Whoever can say more, an agent or another engine, does so shortly.
        disturbance = Disturbance(
            engine_id=link.engine_id,
            message=link.words,
            fault_time=signal.fault_time,
            deadline_seconds=turn.now.seconds + turn.limits.disturbance_seconds,
        )
        turn.note_run(disturbance=disturbance)


def links_after_commit(run: JobRun) -> tuple[FailedLink, ...]:
    """Return the links that a commit does not show to be whole: it took part in none of these."""
    members = run.required_engines
    return tuple(
        link
        for link in run.failed_links
        if not members.issuperset((link.engine_id, link.peer_engine_id))
    )


def choose_to_leave_out(turn: Turn, *, is_old: bool = True) -> Choice | None:
    """Return the nodes to do without because links failed; None where no link is to blame.

    Args:
        turn: the decision.
        is_old: count the end of a connection only once there was time to say that a process ended.
    """
    run = turn.run
    latest = turn.now.seconds - (turn.limits.disturbance_seconds if is_old else 0.0)
    edges = {
        _edge(run, link)
        for link in run.failed_links
        if link.failure is LinkFailure.STALLED
        or (link.says_process_ended and link.since_seconds <= latest)
    }
    if not edges:
        return None
    return nodes_to_leave_out(
        sorted(edges, key=sorted),
        preferred=_preferred(run),
        goes_without=lambda nodes: goes_without(run, nodes),
    )


def leave_out(turn: Turn, choice: Choice) -> None:
    """Do without some nodes for a while: recover as if their engines were lost."""
    gone = [e.id for e in turn.run.engines.values() if e.node_id in choice.nodes]
    for node_id in choice.nodes:
        cordon(turn, node_id, choice.reason)
    turn.stop_engines(gone, choice.reason)
    turn.release_empty_nodes()
    disturbance = turn.run.disturbance
    fault_time = disturbance.fault_time if disturbance else turn.now.time
    note_loss(turn, gone, f"{choice.reason}: it goes on without", fault_time=fault_time)


def goes_without(run: JobRun, nodes: Collection[str]) -> bool:
    """Whether enough nodes are left without some, and every layer has a replica on them."""
    left = [n for n in run.usable_nodes if n not in nodes and n not in run.draining]
    if len(left) < run.nodes_per_replica:
        return False
    placement = run.in_force
    if placement is None:
        return True
    staying = [e.id for e in run.engines.values() if e.node_id not in nodes]
    holdings = holdings_of_placement(placement, staying, run.requirements)
    return not layers_without_replica(holdings, run.requirements.num_layers)


def only_joining(run: JobRun, choice: Choice) -> bool:
    """Whether none of the nodes takes part in training."""
    return choice.nodes != () and not any(
        run.engines[engine_id].node_id in choice.nodes
        for engine_id in run.required_engines
        if engine_id in run.engines
    )


def _without(links: Collection[FailedLink], link: FailedLink) -> tuple[FailedLink, ...]:
    ends = link.engine_id, link.peer_engine_id
    return tuple(each for each in links if (each.engine_id, each.peer_engine_id) != ends)


def _matters(run: JobRun, link: FailedLink) -> bool:
    """Whether steps need the link, and it is more than a suspicion."""
    ends = link.engine_id, link.peer_engine_id
    is_final = link.failure is not LinkFailure.UNREACHABLE
    return is_final and run.required_engines.issuperset(ends)


def _looks_ended(run: JobRun, engine_id: str) -> bool:
    viewers = {e for placement in run.placements for e in _viewers(run, placement, engine_id)}
    homes = {engine.id: engine.node_id for engine in run.engines.values()}
    return looks_ended(engine_id, run.failed_links, viewers & homes.keys(), homes)


def _viewers(run: JobRun, placement: Placement, engine_id: str) -> set[str]:
    """Return the engines of a placement that have a connection to one of them."""
    layers = holdings_of_placement(placement, placement.engine_ids, run.requirements)
    mine = set(layers.get(engine_id, ()))
    seen = {e for e, others in layers.items() if mine.intersection(others)}
    for chain in placement.stage_engines:
        if engine_id in chain:
            at = chain.index(engine_id)
            seen.update(chain[max(at - 1, 0) : at + 2])
    return seen - {engine_id}


def _edge(run: JobRun, link: FailedLink) -> Edge:
    ends = link.engine_id, link.peer_engine_id
    return frozenset(run.engines[engine_id].node_id for engine_id in ends)


def _preferred(run: JobRun) -> list[str]:
    """Return the nodes that are rather left out: joining ones, then those that failed lately."""
    training = {run.engines[e].node_id for e in run.required_engines if e in run.engines}
    joining = sorted(n for n in run.nodes if n not in training)
    failed = sorted(run.failure_times, key=lambda n: run.failure_times[n][-1], reverse=True)
    cordoned = [node_id for node_id in run.cordoned if node_id not in failed]
    return [*joining, *(n for n in (*failed, *cordoned) if n not in joining)]
