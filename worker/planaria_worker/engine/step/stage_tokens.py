"""The tokens of a microbatch that a stage needs: inputs for the first, targets for the last."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from planaria_worker.models.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTokens:
    """Token ids, each [microbatch_size, sequence_length]."""

    inputs: Tensor | None
    """None unless the stage is the first."""
    targets: Tensor | None
    """None unless the stage is the last."""


def load_tokens(
    stage: Stage, device: torch.device, rows: Callable[[], NDArray[np.int64]]
) -> StageTokens:
    """Load what a stage needs of the token ids [microbatch_size, sequence_length + 1]."""
    if not (stage.is_first or stage.is_last):
        return StageTokens(inputs=None, targets=None)
    tokens = torch.from_numpy(rows()).to(device, non_blocking=True)
    return StageTokens(
        inputs=tokens[:, :-1] if stage.is_first else None,
        targets=tokens[:, 1:] if stage.is_last else None,
    )
