"""Layers with the same owners, in the one order in which all engines sum them."""

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
    """Consecutive layers with the same owners, summed in one group.

    A layer that owns a tied parameter gets a gradient from each of the layers that use it, so every
    microbatch is counted once for each use, in a digit of its own: two of one use are not mistaken
    for one of each.
    """

    layers: tuple[int, ...]
    owners: tuple[str, ...]
    """Engine ids in the order of pipelines and stages, then of followers."""
    users: tuple[int, ...]
    """Layers that use these parameters: a tied layer has more than itself."""

    @property
    def is_tied(self) -> bool:
        """Whether several layers use these parameters."""
        return len(self.users) > 1

    @property
    def complete_count(self) -> int:
        """Return what a microbatch counts when it is in the sum once for each use."""
        return self.count(range(max(self.users) + 1))

    def count(self, own_layers: range) -> int:
        """Return what a microbatch counts in the sums of an engine with these layers."""
        if not self.is_tied:
            return 1
        return sum(_DIGIT**digit for digit, user in enumerate(self.users) if user in own_layers)


def find_owned_layers(
    pipelines: Sequence[PipelineAssignment],
    num_layers: int,
    hosted_layers: HostedLayers,
    followers: Sequence[FollowerAssignment] = (),
) -> tuple[OwnedLayers, ...]:
    """Cut the model where the set of owners changes; return the highest layers first.

    The order is the same on all engines, or two pipelines that are cut differently would deadlock
    (protocol/step.md).
    """
    owners: list[list[str]] = [[] for _ in range(num_layers)]
    for stage in stage_assignments(pipelines):
        for layer in hosted_layers(stage.first_layer, stage.num_layers):
            owners[layer].append(stage.engine_id)
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
    """Return the layers that use the parameters of a layer: itself, and the one tied to it."""
    return tuple(user for user in range(num_layers) if layer in hosted_layers(user, 1))
