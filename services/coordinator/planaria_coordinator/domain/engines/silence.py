"""Which silent nodes are lost: a pure function of what was seen of all nodes, and when.

Silence alone says little: the coordinator's own cable may be cut. So nodes that still answer are
asked whether they reach a silent node's machine. Where nobody can be asked, the silence of many is
taken for a fault of the coordinator's own. The end of connections says little more: a firewall ends
those of healthy processes too. A lost node may come back, unless its own agent says that it ends.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

NUM_ASKED = 3
"""How many other nodes are asked about a silent one."""
NUM_WITNESSES = 2
"""How many of them must agree while many are silent, or all holders of a layer."""
MAX_PROBES = 16
"""Probes that a node may have in hand at a time: further silent nodes wait for their turn."""
PROBE_SECONDS = 0.2
"""How long a machine that is probed may take to answer."""
PROBE_ANSWER_SECONDS = 1.0
"""How long the nodes that are asked may take."""
ECHO_SECONDS = 0.2
"""How long a node that others cannot reach may take to answer the coordinator."""
_FRESH_BEATS = 1.5
"""Who was last heard longer ago, in intervals of heartbeats, may be about to fall silent."""
_PATIENCE = 0.25
"""Share of its silence after which a silent node that others reach is probed again."""


class Reach(StrEnum):
    """The values of `planaria.api.worker.v1.Reach`, without the prefix."""

    REACHABLE = "REACHABLE"
    REFUSED = "REFUSED"
    UNREACHABLE = "UNREACHABLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """Other nodes were asked whether they reach a silent one."""

    probe_id: str
    """Random: what answers to this inquiry carry, and to no other."""
    asked_seconds: float
    asked: frozenset[str]
    answers: Mapping[str, Reach] = field(default_factory=dict)
    was_reached: bool = False
    """By an earlier inquiry of the same silence."""

    def is_open(self, now_seconds: float) -> bool:
        """Whether answers may come that could change anything."""
        if len(self.answers) == len(self.asked) or self.is_reached:
            return False
        return now_seconds < self.asked_seconds + PROBE_ANSWER_SECONDS

    @property
    def is_reached(self) -> bool:
        """Whether somebody reaches the machine."""
        return Reach.REACHABLE in self.answers.values()

    @property
    def leaves_reached(self) -> bool:
        """Whether somebody reaches it, or did and nobody has said anything else since."""
        return self.is_reached or (self.was_reached and not self.answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What has been seen of a node; times are seconds on the monotonic clock."""

    last_seen_seconds: float
    """The last sign of life, or the moment from which on one is expected."""
    session_open: bool
    ended_seconds: float | None = None
    """When its last session was seen to end; None: it is open, or has not been since our start."""
    has_left: bool = False
    """Its agent said that it ends, and its engines have ended."""
    suspected_seconds: float | None = None
    """When others could not reach it, and it was asked for a heartbeat that has not come."""
    peer_lost: bool = False
    """An engine elsewhere saw the process of one of its engines end, and nobody has explained it
    since."""
    job_ids: tuple[str, ...] = ()
    """Jobs that have engines on it."""
    addresses: tuple[str, ...] = ()
    """Where its engines listen; empty while they start."""
    has_stalled: bool = False
    """A job that has engines on it makes no progress, and should have for the node deadline."""
    inquiry: Inquiry | None = None

    @property
    def holds_state(self) -> bool:
        """Whether engines on it may hold layers."""
        return bool(self.addresses)

    @property
    def seems_ended(self) -> bool:
        """Whether its session and a connection with one of its engines were seen to end."""
        return self.ended_seconds is not None and self.peer_lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """The coordinator's settings, in seconds."""

    heartbeat_interval_seconds: float
    node_deadline_seconds: float
    agent_lease_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Why a node is lost."""

    reason: str
    gone: bool = False
    """Its engines are known to have ended: its agent or an administrator says so."""


@dataclass(slots=True, kw_only=True)
class Judgement:
    """What follows from what was seen."""

    lost: dict[str, Loss] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    """Silent nodes that are not lost, and why not."""
    absent: set[str] = field(default_factory=set)
    """Nodes whose engines cannot be expected to answer, as nothing is known of them yet."""
    asked: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Which other nodes to ask whether they reach a silent one."""


def judge(
    now_seconds: float,
    sights: Mapping[str, Sight],
    holders_of_layers: Iterable[frozenset[str]],
    patience: Patience,
    *,
    is_blind: bool = False,
) -> Judgement:
    """Judge every silent node.

    Args:
        now_seconds: the time.
        sights: what was seen of the nodes that are not lost.
        holders_of_layers: by layer of each job, the nodes that hold it; looked at only if needed.
        patience: how long is waited for what.
        is_blind: nothing was heard of anybody since the coordinator's own start or stall, or since
            all fell silent.
    """
    judgement = Judgement()
    silent = {n: s for n, s in sights.items() if _is_silent(now_seconds, s, patience)}
    suspected = [n for n, s in sights.items() if n not in silent and _is_to_be_checked(s)]
    if not silent and not suspected:
        return judgement
    if is_blind:
        return Judgement(silent=dict.fromkeys(silent, "no node is heard"), absent=set(silent))
    fresh = [n for n, s in sights.items() if _is_fresh(now_seconds, s, patience)]
    members = [n for n, s in sights.items() if s.job_ids]
    spared = _spared(set(members).difference(fresh), len(members), holders_of_layers)
    beating = {n for n, s in sights.items() if _is_beating(now_seconds, s, patience)}
    askers = _Askers(now_seconds, fresh, beating, sights)
    for node_id in sorted(silent, key=lambda node_id: (silent[node_id].last_seen_seconds, node_id)):
        case = _Case(
            node_id=node_id,
            now_seconds=now_seconds,
            sight=silent[node_id],
            spared=spared.get(node_id, ""),
            can_be_asked=len(beating) > (node_id in beating),
            patience=patience,
        )
        case.enter(judgement)
        if node_id not in judgement.lost and case.is_to_be_asked:
            asked = askers.take(node_id, silent[node_id])
            if asked:
                judgement.asked[node_id] = asked
    for node_id in suspected:  # while its answer may still come
        asked = askers.take(node_id, sights[node_id])
        if asked:
            judgement.asked[node_id] = asked
    return judgement


def sees_nobody(now_seconds: float, sights: Mapping[str, Sight], patience: Patience) -> bool:
    """Whether all have fallen silent: the first that is heard then says nothing of the others yet.

    A single node that is silent may be lost.
    """
    if sum(bool(sight.job_ids) for sight in sights.values()) < 2:
        return False
    return not any(_is_beating(now_seconds, sight, patience) for sight in sights.values())


def _is_silent(now_seconds: float, sight: Sight, patience: Patience) -> bool:
    if sight.has_left or sight.seems_ended:
        return True
    if now_seconds - sight.last_seen_seconds > patience.node_deadline_seconds:
        return True
    suspected = sight.suspected_seconds
    return suspected is not None and now_seconds >= suspected + ECHO_SECONDS


def _is_to_be_checked(sight: Sight) -> bool:
    return sight.suspected_seconds is not None and sight.inquiry is None and sight.holds_state


def _is_beating(now_seconds: float, sight: Sight, patience: Patience) -> bool:
    silence_seconds = now_seconds - sight.last_seen_seconds
    is_heard = silence_seconds <= _FRESH_BEATS * patience.heartbeat_interval_seconds
    return is_heard and sight.session_open


def _is_fresh(now_seconds: float, sight: Sight, patience: Patience) -> bool:
    return sight.suspected_seconds is None and _is_beating(now_seconds, sight, patience)


def _spared(
    quiet: Collection[str], num_members: int, holders_of_layers: Iterable[frozenset[str]]
) -> dict[str, str]:
    """Return the nodes that are not lost by silence alone, and why.

    Nodes fall silent one after another, within an interval of heartbeats: those that have not been
    heard lately count as well.
    """
    if len(quiet) > 1 and 3 * len(quiet) > num_members:
        return dict.fromkeys(quiet, f"{len(quiet)} of {num_members} nodes are silent at once")
    found: dict[str, str] = {}
    for holders in holders_of_layers:
        if holders.issubset(quiet):
            found.update(dict.fromkeys(holders, "nobody else holds its layers"))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One silent node."""

    node_id: str
    now_seconds: float
    sight: Sight
    spared: str
    can_be_asked: bool
    patience: Patience

    def enter(self, judgement: Judgement) -> None:
        """Enter what becomes of it."""
        sight, inquiry = self.sight, self.sight.inquiry
        if sight.has_left:
            self._lose(judgement, "its agent was asked to end", gone=True)
        elif sight.seems_ended and not self.spared:
            self._lose(judgement, "its session and an engine's process ended")
        elif not sight.holds_state:
            self._without_state(judgement)
        elif inquiry is not None and self._is_reached(inquiry):
            self._reached(judgement)
        elif inquiry is not None and self._is_answered(inquiry):
            self._not_reached(judgement, inquiry.answers.values())
        elif self._waits_for_answers:
            judgement.absent.add(self.node_id)
        else:
            self._unknown(judgement)

    @property
    def is_to_be_asked(self) -> bool:
        """Whether other nodes are to be asked now."""
        sight, inquiry = self.sight, self.sight.inquiry
        if not sight.holds_state:
            return False
        if inquiry is None:
            return True
        pause_seconds = max(self.patience.node_deadline_seconds, _PATIENCE * self._silence_seconds)
        return self.now_seconds >= inquiry.asked_seconds + pause_seconds

    def _is_reached(self, inquiry: Inquiry) -> bool:
        """What others saw before counts until they say something else, while any can be asked."""
        return inquiry.is_reached or (inquiry.leaves_reached and self.can_be_asked)

    def _is_answered(self, inquiry: Inquiry) -> bool:
        """Whether enough others have said that they do not reach it.

        Before the deadline one alone is not enough while many are silent: it may be the one that
        is cut off.
        """
        if not inquiry.answers or inquiry.is_open(self.now_seconds):
            return False
        is_late = self._silence_seconds > self.patience.node_deadline_seconds
        return is_late or not self.spared or len(inquiry.answers) >= NUM_WITNESSES

    @property
    def _waits_for_answers(self) -> bool:
        inquiry = self.sight.inquiry
        if inquiry is not None and inquiry.is_open(self.now_seconds):
            return True
        return inquiry is None and self.can_be_asked

    def _without_state(self, judgement: Judgement) -> None:
        """It cannot be asked about: its engines only start, or there are none."""
        if self.spared and self.can_be_asked and self._is_lease_over:
            self._lose(judgement, self._overdue_reason)
        elif self.spared or self._is_overdue:
            self._unknown(judgement)

    def _reached(self, judgement: Judgement) -> None:
        """Its machine is there; without an agent its engines go on for the lease.

        While many are silent, a job that makes no progress may be waiting for something else until
        then.
        """
        may_be_lost = self._is_lease_over or (self.sight.session_open and not self.spared)
        if self.sight.has_stalled and may_be_lost:
            self._lose(judgement, "only its machine answers, and a job waits for it")
        elif self.spared:
            judgement.silent[self.node_id] = f"others reach its machine; {self.spared}"
            judgement.absent.add(self.node_id)
        elif not self.sight.session_open and self._is_lease_over:
            self._lose(judgement, "its agent has not come back within its lease")
        else:
            judgement.silent[self.node_id] = "others reach its machine"

    def _not_reached(self, judgement: Judgement, answers: Collection[Reach]) -> None:
        if all(answer is Reach.REFUSED for answer in answers):
            self._lose(judgement, "its engines refuse connections, and it does not answer")
        else:
            num = len(answers)
            others = "another node does" if num == 1 else f"{num} other nodes do"
            self._lose(judgement, f"{others} not reach it either")

    def _unknown(self, judgement: Judgement) -> None:
        """Nobody can be asked, or nobody has answered: the deadline decides, unless it is ours."""
        if self.spared:
            judgement.silent[self.node_id] = self.spared
            judgement.absent.add(self.node_id)
        elif self._is_overdue:
            self._lose(judgement, self._overdue_reason)
        else:
            judgement.absent.add(self.node_id)

    def _lose(self, judgement: Judgement, reason: str, *, gone: bool = False) -> None:
        judgement.lost[self.node_id] = Loss(reason=reason, gone=gone)

    @property
    def _silence_seconds(self) -> float:
        return self.now_seconds - self.sight.last_seen_seconds

    @property
    def _overdue_reason(self) -> str:
        return f"no heartbeat for {self._silence_seconds:.1f} s"

    @property
    def _is_lease_over(self) -> bool:
        """Counted from the end of its session: what came before it was heard of its engines."""
        since = max(self.sight.last_seen_seconds, self.sight.ended_seconds or 0.0)
        lease_seconds = max(self.patience.node_deadline_seconds, self.patience.agent_lease_seconds)
        return self.now_seconds - since > lease_seconds

    @property
    def _is_overdue(self) -> bool:
        sight = self.sight
        if sight.session_open or sight.peer_lost or not sight.job_ids:
            return self._silence_seconds > self.patience.node_deadline_seconds
        return self._is_lease_over


class _Askers:
    """Deals out who asks about whom, so that nobody has too much in hand."""

    def __init__(
        self,
        now_seconds: float,
        fresh: Collection[str],
        beating: Collection[str],
        sights: Mapping[str, Sight],
    ) -> None:
        self._in_hand: dict[str, int] = {}
        for sight in sights.values():
            inquiry = sight.inquiry
            if inquiry is not None and now_seconds < inquiry.asked_seconds + PROBE_ANSWER_SECONDS:
                for asked in inquiry.asked.difference(inquiry.answers):
                    self._in_hand[asked] = self._in_hand.get(asked, 0) + 1
        suspected = set(beating).difference(fresh)
        self._fresh, self._suspected = (
            _pools(sorted(nodes), sights, first=int(now_seconds)) for nodes in (fresh, suspected)
        )

    def take(self, node_id: str, sight: Sight) -> tuple[str, ...]:
        """Choose who is asked: nodes of the same jobs first, which are in the same network.

        Where too few are above suspicion, others that still beat are asked as well: the one that
        accuses them all may be the one that is cut off.
        """
        chosen: list[str] = []
        self._take(self._fresh, node_id, sight, chosen, NUM_ASKED)
        self._take(self._suspected, node_id, sight, chosen, NUM_WITNESSES)
        return tuple(chosen)

    def _take(
        self,
        pools: Mapping[str, deque[str]],
        node_id: str,
        sight: Sight,
        chosen: list[str],
        number: int,
    ) -> None:
        for job_id in (*sight.job_ids, ""):
            pool = pools.get(job_id, deque())
            for _ in range(len(pool)):
                if len(chosen) >= number:
                    return
                if self._in_hand.get(pool[0], 0) >= MAX_PROBES:
                    pool.popleft()
                    continue
                if pool[0] != node_id and pool[0] not in chosen:
                    chosen.append(pool[0])
                    self._in_hand[pool[0]] = self._in_hand.get(pool[0], 0) + 1
                pool.rotate(-1)


def _pools(
    nodes: Sequence[str], sights: Mapping[str, Sight], *, first: int
) -> dict[str, deque[str]]:
    """Return nodes by their jobs, and all of them; each time another one comes first."""
    pools: dict[str, deque[str]] = {"": deque()}
    for node_id in nodes:
        for job_id in (*sights[node_id].job_ids, ""):
            pools.setdefault(job_id, deque()).append(node_id)
    for pool in pools.values():
        pool.rotate(-first)
    return pools
