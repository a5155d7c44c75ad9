"""Runs: layers that the same engines own, in the one order in which everybody sums them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from planaria_worker.engine.plan.plan import (
    FollowerAssignment,
    PipelineAssignment,
    stage_assignments,
)

HostedLayers = Callable[[int, int], Sequence[int]]
"""From (first layer, number of layers) of a stage to the layers whose state it needs: its own, and
the owner of a parameter that is tied to one of them (`models.stage.hosted_layers`)."""

_DIGIT = 1024
"""Base of the counts; the sum of two digits is exact in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedLayers:
    """Layers that the same engines own, summed by one all-reduce.

    A layer that owns a tied parameter gets a gradient from each of the layers that use it, so every
    microbatch is counted once for each use, in a digit of its own: two of one use are not mistaken
    for one of each.
    """

    layers: tuple[int, ...]
    owners: tuple[str, ...]
    """Engine ids in the order of pipelines and stages, then of followers."""
    users: tuple[int, ...]
    """Layers that use the run's parameters: only a tied layer has more than itself."""

    @property
    def is_tied(self) -> bool:
        """Whether several layers use its parameters."""
        return len(self.users) > 1

    @property
    def whole_count(self) -> int:
        """What a microbatch counts when it is in the sum once for each use."""
        return self.count(range(max(self.users) + 1))

    def count(self, own_layers: range) -> int:
        """What a microbatch counts that an engine with these layers adds."""
        if not self.is_tied:
            return 1
        return sum(_DIGIT**place for place, user in enumerate(self.users) if user in own_layers)


def find_owned_layers(
    pipelines: Sequence[PipelineAssignment],
    num_layers: int,
    hosted_layers: HostedLayers,
    followers: Sequence[FollowerAssignment] = (),
) -> tuple[OwnedLayers, ...]:
    """Cuts the model where the set of owners changes; the run with the highest first layer first.

    One order for all, or two pipelines that are cut differently wait for each other for ever
    (protocol/step.md).
    """
    owners: list[list[str]] = [[] for _ in range(num_layers)]
    for place in stage_assignments(pipelines):
        for layer in hosted_layers(place.first_layer, place.num_layers):
            owners[layer].append(place.engine_id)
    for follower in followers:
        for layer in follower.layers:
            owners[layer].append(follower.engine_id)
    users = [_users(layer, num_layers, hosted_layers) for layer in range(num_layers)]
    cuts = groupby(range(num_layers), key=lambda layer: (owners[layer], len(users[layer])))
    groups = [tuple(layers) for _, layers in cuts]
    return tuple(
        OwnedLayers(layers=layers, owners=tuple(owners[layers[0]]), users=users[layers[0]])
        for layers in reversed(groups)
    )


def _users(layer: int, num_layers: int, hosted_layers: HostedLayers) -> tuple[int, ...]:
    """Layers that use the parameters of a layer: itself, and the one tied to it."""
    return tuple(user for user in range(num_layers) if layer in hosted_layers(user, 1))
