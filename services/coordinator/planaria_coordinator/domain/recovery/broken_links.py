"""Engines that cannot reach each other: whom to believe, and which nodes to do without.

A report accuses a link. It is believed as a loss only where enough others say the same; a link that
stays broken between two engines that live is avoided, by leaving out one of its nodes for a while.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime

from planaria_coordinator.domain.engines.engine import node_of
from planaria_coordinator.domain.engines.links import (
    Choice,
    Edge,
    FailedLink,
    LinkFailure,
    edge_of,
    looks_ended,
    nodes_to_leave_out,
)
from planaria_coordinator.domain.job.cordons import cordon
from planaria_coordinator.domain.job.job_run import Disturbance, JobRun
from planaria_coordinator.domain.job.signals import LinkFailed
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.placement.peers import holds_every_layer
from planaria_coordinator.domain.placement.replicas import (
    layers_of_version,
    layers_without_replica,
)
from planaria_coordinator.domain.recovery.lost_engines import is_spare, note_loss

_UNREACHABLE_LATELY_SECONDS = 10.0


def link_failed(turn: Turn, signal: LinkFailed) -> None:
    """Note what an engine says; do at once without a node of which enough of them say it.

    Not without one that would take the only replica of a layer with it: its agent says whether
    its process has ended. If it has, the node may join again at once.
    """
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
    accused = node_of(link.peer_engine_id)
    if _looks_ended(turn.run, link.peer_engine_id) and is_spare(turn, accused):
        leave_out(turn, Choice(nodes=(accused,), is_possible=True, reason=link.words))
    elif run.trains:
        _wait_for_others(turn, link, signal.fault_time)


def _wait_for_others(turn: Turn, link: FailedLink, fault_time: datetime) -> None:
    """Whoever can say more, an agent or another engine, does so shortly.

    Messages that stall are noticed at different times by different engines.
    """
    limits, known = turn.limits, turn.run.disturbance
    is_slow = link.failure is LinkFailure.STALLED
    wait_seconds = limits.stalled_seconds if is_slow else limits.disturbance_seconds
    deadline_seconds = turn.now.seconds + wait_seconds
    if known is None:
        disturbance = Disturbance(
            engine_id=link.engine_id,
            message=link.words,
            fault_time=fault_time,
            deadline_seconds=deadline_seconds,
        )
        turn.note_run(disturbance=disturbance)
    elif is_slow and not any(each.failure is link.failure for each in _older(turn.run, link)):
        turn.note_run(disturbance=replace(known, deadline_seconds=deadline_seconds))


def links_after_commit(run: JobRun) -> tuple[FailedLink, ...]:
    """Return the links that a commit does not show to be whole: it took part in none of these."""
    members = run.required_engines
    return tuple(
        link
        for link in run.failed_links
        if not members.issuperset((link.engine_id, link.peer_engine_id))
    )


def choose_to_leave_out(
    turn: Turn, *, is_old: bool = True, is_last_try: bool = False
) -> Choice | None:
    """Return the nodes to do without because links failed; None where no link is to blame.

    Peers that were unreachable lately count as well, once some link is known to have failed: they
    show which of its ends it was.

    Args:
        turn: the decision.
        is_old: count the end of a connection only once there was time to say that a process ended.
        is_last_try: let unreachable peers count in any case.
    """
    run, now = turn.run, turn.now.seconds
    latest = now - (turn.limits.disturbance_seconds if is_old else 0.0)
    failed = [
        link
        for link in run.failed_links
        if link.failure is LinkFailure.STALLED
        or (link.says_process_ended and link.since_seconds <= latest)
    ]
    if failed or is_last_try:
        failed += [
            link
            for link in run.failed_links
            if link.failure is LinkFailure.UNREACHABLE
            and link.since_seconds > now - _UNREACHABLE_LATELY_SECONDS
        ]
    edges = {edge_of(link) for link in failed}
    if not edges:
        return None
    return nodes_to_leave_out(
        sorted(edges, key=sorted),
        earlier=_earlier_edges(run),
        preferred=_preferred(run),
        goes_without=goes_without(run),
    )


def choose_joining(turn: Turn, reason: str) -> Choice | None:
    """Return the nodes whose joining fails; None where the others cannot go on without them."""
    run, transition = turn.run, turn.transition
    nodes = tuple(n for n in transition.history.nodes_joined if n in run.nodes)
    left = [n for n in run.usable_nodes if n not in nodes and n not in run.draining]
    holdings = {
        engine_id: layers_of_version(report.layers, transition.target_steps)
        for engine_id, report in transition.reports.items()
        if engine_id in run.engines and run.engines[engine_id].node_id not in nodes
    }
    is_whole = not layers_without_replica(holdings, run.requirements.num_layers)
    if not nodes or len(left) < run.nodes_per_replica or not is_whole:
        return None
    return Choice(nodes=nodes, is_possible=True, reason=f"{', '.join(nodes)} cannot join: {reason}")


def leave_out(turn: Turn, choice: Choice) -> None:
    """Do without some nodes for a while: recover as if their engines were lost."""
    gone = [e.id for e in turn.run.engines.values() if e.node_id in choice.nodes]
    edges = [edge_of(link) for link in turn.run.failed_links]
    for node_id in choice.nodes:
        peers = {peer for edge in edges if node_id in edge for peer in edge} - {node_id}
        cordon(turn, node_id, choice.reason, peers)
    turn.stop_engines(gone, choice.reason)
    turn.release_empty_nodes()
    disturbance = turn.run.disturbance
    fault_time = disturbance.fault_time if disturbance else turn.now.time
    note_loss(turn, gone, f"{choice.reason}: it goes on without", fault_time=fault_time)


def goes_without(run: JobRun) -> Callable[[Collection[str]], bool]:
    """Return whether enough nodes are left without some, and every layer has a replica on them.

    It must have one in every placement that may be in force.
    """
    usable = frozenset(run.usable_nodes) - frozenset(run.draining)

    def is_possible(nodes: Collection[str]) -> bool:
        def stays(engine_id: str) -> bool:
            return engine_id in run.engines and node_of(engine_id) not in nodes

        is_enough = len(usable) - len(usable.intersection(nodes)) >= run.nodes_per_replica
        return is_enough and all(
            holds_every_layer(placement, stays, run.requirements) for placement in run.placements
        )

    return is_possible


def only_joining(run: JobRun, choice: Choice) -> bool:
    """Whether none of the nodes takes part in training."""
    return choice.nodes != () and not any(
        run.engines[engine_id].node_id in choice.nodes
        for engine_id in run.required_engines
        if engine_id in run.engines
    )


def _older(run: JobRun, link: FailedLink) -> Collection[FailedLink]:
    return [each for each in run.failed_links if each is not link]


def _without(links: Collection[FailedLink], link: FailedLink) -> tuple[FailedLink, ...]:
    ends = link.engine_id, link.peer_engine_id
    return tuple(each for each in links if (each.engine_id, each.peer_engine_id) != ends)


def _matters(run: JobRun, link: FailedLink) -> bool:
    """Whether steps need the link, and it is more than a suspicion."""
    ends = link.engine_id, link.peer_engine_id
    is_final = link.failure is not LinkFailure.UNREACHABLE
    return is_final and run.required_engines.issuperset(ends)


def _looks_ended(run: JobRun, engine_id: str) -> bool:
    return looks_ended(engine_id, run.failed_links, _earlier_edges(run))


def _earlier_edges(run: JobRun) -> list[Edge]:
    """Return the links between nodes that are left out and those for which they are."""
    out = ((n, run.cordoned[n]) for n in run.left_out)
    return [frozenset((node_id, peer)) for node_id, c in out for peer in c.peers]


def _preferred(run: JobRun) -> list[str]:
    """Return the nodes that are rather left out: joining ones, then those that failed lately.

    First of all those that are out already. Before those that failed are those of which others saw
    an end and which say nothing, so that nobody is stopped for one that is dead.
    """
    training = {run.engines[e].node_id for e in run.required_engines if e in run.engines}
    joining = sorted(n for n in run.nodes if n not in training)
    ends = [link for link in run.failed_links if link.says_process_ended]
    alive = {link.engine_id for link in ends}
    seen = sorted(node_of(e) for e in {link.peer_engine_id for link in ends} - alive)
    failed = sorted(run.failure_times, key=lambda n: run.failure_times[n][-1], reverse=True)
    return list(dict.fromkeys((*run.left_out, *joining, *seen, *failed, *run.cordoned)))
