"""Engines that cannot reach each other: whom to believe, and which nodes to do without.

A report accuses a link. It is believed as a loss only where enough others say the same; a link that
stays broken between two engines that live is avoided, by leaving out one of its nodes for a while.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from planaria_coordinator.domain.job.cordons import cordon, suspects
from planaria_coordinator.domain.job.job_run import Disturbance, JobRun
from planaria_coordinator.domain.job.signals import EngineLost, LinkFailed
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.placement.peers import holds_every_layer, roles_of
from planaria_coordinator.domain.placement.placement import Placement
from planaria_coordinator.domain.placement.replicas import (
    layers_of_version,
    layers_without_replica,
)
from planaria_coordinator.domain.recovery.lost_engines import engine_lost, is_spare, note_loss

_UNREACHABLE_LATELY_SECONDS = 10.0


def links_failed(turn: Turn, signals: Collection[LinkFailed]) -> None:
    """Note what engines say at one moment; believe at once what enough of them say.

    Not of an engine that would take the only replica of a layer with it: its agent says whether
    its process has ended.
    """
    known = turn.run.failed_links
    fault_times = {
        _noted(turn, each): each.fault_time
        for each in signals
        if each.engine_id != each.peer_engine_id
    }
    reported = _between_living(turn, fault_times)
    turn.note_run(failed_links=_with_newest(known, reported))
    final = [link for link in reported if link.is_final]
    needed = _in_use(turn.run, final, turn.run.placements)
    _believe(turn, needed, fault_times)
    needed = _between_living(turn, needed)
    if needed and turn.run.trains:
        stalled_before = any(link.failure is LinkFailure.STALLED for link in known)
        fault_time = fault_times[needed[0]]
        _wait_for_others(turn, needed, fault_time, stalled_before=stalled_before)


def _noted(turn: Turn, signal: LinkFailed) -> FailedLink:
    return FailedLink(
        engine_id=signal.engine_id,
        peer_engine_id=signal.peer_engine_id,
        failure=signal.failure,
        direction=signal.direction,
        since_seconds=turn.now.seconds,
    )


def _believe(
    turn: Turn, links: Collection[FailedLink], fault_times: Mapping[FailedLink, datetime]
) -> None:
    """Recover from the losses of engines of which enough others say that they ended.

    What an engine said before it ended speaks against no other any more: all are judged again.
    """
    known = [link for link in turn.run.failed_links if link.says_process_ended]
    ends = _in_use(turn.run, known, turn.run.placements)
    accused = {link.peer_engine_id: link for link in links}
    while True:
        ends = _between_living(turn, ends)
        ended = (e for e in accused if _looks_ended(turn, e, ends))
        engine_id = next((e for e in ended if is_spare(turn, node_of(e))), None)
        if engine_id is None:
            return
        link = accused.pop(engine_id)
        lost = EngineLost(
            engine_id=engine_id,
            fault_time=fault_times[link],
            reason=link.words,
            process_ended=False,
        )
        accusing = {node_of(e.engine_id) for e in known if e.peer_engine_id == engine_id}
        engine_lost(turn, lost, seen_by=accusing - {node_of(engine_id)})


def _between_living(turn: Turn, links: Collection[FailedLink]) -> list[FailedLink]:
    engines = turn.run.engines
    return [each for each in links if each.engine_id in engines and each.peer_engine_id in engines]


def _wait_for_others(
    turn: Turn, links: Sequence[FailedLink], fault_time: datetime, *, stalled_before: bool
) -> None:
    """Whoever can say more, an agent or another engine, does so shortly.

    Messages that stall are noticed at different times by different engines.
    """
    limits, known, link = turn.limits, turn.run.disturbance, links[0]
    is_slow = any(each.failure is LinkFailure.STALLED for each in links)
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
    elif is_slow and not stalled_before:
        turn.note_run(disturbance=replace(known, deadline_seconds=deadline_seconds))


def links_after_commit(run: JobRun) -> tuple[FailedLink, ...]:
    """Return the links that a commit does not show to be whole: it was made over none of these.

    A change under way may fail by them; else they are reported again by who needs them.
    """
    if not run.failed_links or run.transition is None:
        return ()
    used = _in_use(run, run.failed_links, run.placements)
    return tuple(link for link in run.failed_links if link not in used)


def choose_to_leave_out(
    turn: Turn,
    *,
    is_old: bool = True,
    is_last_try: bool = False,
    placements: Iterable[Placement] | None = None,
    absent_nodes: Collection[str] = (),
) -> Choice | None:
    """Return the nodes to do without because links failed; None where no link is to blame.

    Args:
        turn: the decision.
        is_old: count the ends of connections only once there was time to say that a process ended.
        is_last_try: without any other, count links whose peer was unreachable lately.
        placements: those whose links count; by default those that may be in force.
        absent_nodes: those of which nothing is heard: what they hold may be gone.
    """
    run, now = turn.run, turn.now.seconds
    placements = run.placements if placements is None else placements
    used = _in_use(run, run.failed_links, placements)
    failed = [link for link in used if link.is_final]
    lately = [
        link
        for link in used
        if not link.is_final and link.since_seconds > now - _UNREACHABLE_LATELY_SECONDS
    ]
    latest = now - (turn.limits.disturbance_seconds if is_old else 0.0)
    if not any(
        each.failure is LinkFailure.STALLED or each.since_seconds <= latest for each in failed
    ):
        failed = lately if is_last_try else []
    if not failed:
        return None
    return nodes_to_leave_out(
        sorted({edge_of(link) for link in failed}, key=sorted),
        earlier=_earlier_edges(turn),
        preferred=_preferred(turn, lately, absent_nodes),
        goes_without=goes_without(run, absent_nodes),
    )


def choose_joining(turn: Turn, reason: str) -> Choice | None:
    """Return the nodes whose joining fails; None where the others cannot go on without them."""
    run, transition = turn.run, turn.transition
    nodes = joining_nodes(turn)
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


def joining_nodes(turn: Turn) -> tuple[str, ...]:
    """Return the nodes that the change under way lets join; not one whose engine was lost since."""
    usable = turn.run.usable_nodes
    return tuple(n for n in turn.transition.history.nodes_joined if n in usable)


def leave_out(turn: Turn, choice: Choice) -> None:
    """Do without some nodes for a while: recover as if their engines were lost."""
    gone = [e.id for e in turn.run.engines.values() if e.node_id in choice.nodes]
    edges = [edge_of(link) for link in turn.run.failed_links if link.is_final]
    for node_id in choice.nodes:
        peers = {peer for edge in edges if node_id in edge for peer in edge} - {node_id}
        cordon(turn, node_id, choice.reason, peers)
    turn.stop_engines(gone, choice.reason)
    turn.release_empty_nodes()
    disturbance = turn.run.disturbance
    fault_time = disturbance.fault_time if disturbance else turn.now.time
    note_loss(turn, gone, f"{choice.reason}: it goes on without", fault_time=fault_time)


def goes_without(run: JobRun, absent_nodes: Collection[str]) -> Callable[[Collection[str]], bool]:
    """Return whether enough nodes are left without some, and every layer has a replica on them.

    It must have one in every placement that may be in force, and where something is heard of.
    """
    usable = frozenset(run.usable_nodes) - frozenset(run.draining)

    def is_possible(nodes: Collection[str]) -> bool:
        def stays(engine_id: str) -> bool:
            home = node_of(engine_id)
            return engine_id in run.engines and home not in nodes and home not in absent_nodes

        is_enough = len(usable) - len(usable.intersection(nodes)) >= run.nodes_per_replica
        return is_enough and all(
            holds_every_layer(placement, stays, run.requirements) for placement in run.placements
        )

    return is_possible


def is_likely(run: JobRun, choice: Choice) -> bool:
    """Whether those that train are no more than the job is to survive at once.

    Else it would rather be a fault of the whole network.
    """
    return only_joining(run, choice) or len(choice.nodes) <= max(
        1, run.requirements.fault_tolerance
    )


def only_joining(run: JobRun, choice: Choice) -> bool:
    """Whether none of the nodes takes part in training."""
    return choice.nodes != () and not any(
        run.engines[engine_id].node_id in choice.nodes
        for engine_id in run.required_engines
        if engine_id in run.engines
    )


def _with_newest(
    links: Collection[FailedLink], newer: Collection[FailedLink]
) -> tuple[FailedLink, ...]:
    """Add what is newest of each link; one that was given up is not only unreachable again."""
    newest = {link.ends: link for link in links}
    for link in newer:
        if link.is_final or link.ends not in newest or not newest[link.ends].is_final:
            newest.pop(link.ends, None)
            newest[link.ends] = link
    return tuple(newest.values())


def _in_use(
    run: JobRun, links: Collection[FailedLink], placements: Iterable[Placement]
) -> list[FailedLink]:
    """Return the links over which engines send to each other in one of some placements."""
    ends = {engine_id for link in links for engine_id in link.ends}
    roles = [roles_of(placement, ends, run.requirements) for placement in placements]
    return [
        link
        for link in links
        if any(
            mine is not None and others is not None and mine.sends_to(others)
            for mine, others in (map(found.get, link.ends) for found in roles)
        )
    ]


def _looks_ended(turn: Turn, engine_id: str, ends: Collection[FailedLink]) -> bool:
    return looks_ended(engine_id, ends, _earlier_edges(turn))


def _earlier_edges(turn: Turn) -> list[Edge]:
    """Return the links of suspects with those for which they are."""
    return [frozenset((n, peer)) for n, c in suspects(turn).items() for peer in c.peers]


def _preferred(
    turn: Turn, lately: Iterable[FailedLink], absent_nodes: Collection[str]
) -> list[str]:
    """Return the nodes that are rather left out than others: the likeliest first.

    Those that links failed with before, or of which nothing is heard; those of which others saw an
    end and which say nothing, so that nobody is stopped for one that is dead; those with most peers
    that were unreachable lately; those that join; those that failed lately.
    """
    run = turn.run
    training = {run.engines[e].node_id for e in run.required_engines if e in run.engines}
    joining = sorted(n for n in run.nodes if n not in training)
    ends = [link for link in run.failed_links if link.says_process_ended]
    alive = {link.engine_id for link in ends}
    seen = sorted(node_of(e) for e in {link.peer_engine_id for link in ends} - alive)
    failed = sorted(run.failure_times, key=lambda n: run.failure_times[n][-1], reverse=True)
    counts = Counter(node_id for edge in set(map(edge_of, lately)) for node_id in edge)
    named = dict.fromkeys((*joining, *failed, *run.cordoned, *sorted(counts)))
    likeliest = sorted(named, key=lambda n: -counts[n])
    return list(dict.fromkeys((*suspects(turn), *sorted(absent_nodes), *seen, *likeliest)))
