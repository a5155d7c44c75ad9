"""A worker under torchrun: pipelines of two, all-reduce across them, a DCP checkpoint each step.

A restart loads the newest checkpoint, which is of the step before: no committed step is lost.
"""

import datetime
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from benchmarks.recovery.peers.pipeline import Commits, Half, Settings, run_step

TIMEOUT = datetime.timedelta(seconds=30)
_NEWEST = "newest"


def main() -> None:
    dist.init_process_group("gloo", timeout=TIMEOUT)
    settings = Settings()
    rank, num_pipelines = dist.get_rank(), dist.get_world_size() // 2
    pipeline, stage = divmod(rank, 2)
    owners = [
        dist.new_group([2 * p + s for p in range(num_pipelines)], timeout=TIMEOUT) for s in (0, 1)
    ]
    everyone = dist.new_group(list(range(2 * num_pipelines)), timeout=TIMEOUT)
    writers = dist.new_group([0, 1], timeout=TIMEOUT)
    if pipeline == num_pipelines:
        time.sleep(1e6)  # the odd one: torchrun ends it when somebody comes or goes
    half = Half(settings, is_first=stage == 0)
    optimizer = torch.optim.AdamW(half.parameters(), lr=1e-3)
    commits, step = Commits(settings, "torchrun"), _load(settings.folder, half, optimizer, stage)
    partner = rank ^ 1
    while True:
        optimizer.zero_grad()
        run_step(
            half,
            settings,
            step,
            range(settings.num_microbatches)[pipeline::num_pipelines],
            send=lambda tensor: dist.isend(tensor, partner),
            receive=lambda tensor: dist.recv(tensor, partner),
        )
        for parameter in half.parameters():
            dist.all_reduce(parameter.grad, group=owners[stage])
        optimizer.step()
        step += 1
        if pipeline == 0:
            save(
                _state(half, optimizer, stage),
                checkpoint_id=settings.folder / f"step-{step % 2}",
                process_group=writers,
            )
        dist.barrier(group=everyone)
        if rank == 0:
            _point_to(settings.folder, step)
            commits.write(step - 1, num_pipelines=num_pipelines)


def _state(half: Half, optimizer: torch.optim.Optimizer, stage: int) -> dict[str, Any]:
    model, optimizer_state = get_state_dict(half, optimizer)
    return {f"stage-{stage}": {"model": model, "optimizer": optimizer_state}}


def _load(folder: Path, half: Half, optimizer: torch.optim.Optimizer, stage: int) -> int:
    """Return how many steps are committed, with their parameters and optimizer state loaded."""
    pointer = folder / _NEWEST
    if not pointer.exists():
        return 0
    step = int(pointer.read_text())
    state = _state(half, optimizer, stage)
    load(state, checkpoint_id=folder / f"step-{step % 2}", no_dist=True)
    mine = state[f"stage-{stage}"]
    set_state_dict(
        half, optimizer, model_state_dict=mine["model"], optim_state_dict=mine["optimizer"]
    )
    return step


def _point_to(folder: Path, step: int) -> None:
    """Say which checkpoint is complete, at once or not at all."""
    draft = folder / f"{_NEWEST}.draft"
    draft.write_text(str(step))
    draft.replace(folder / _NEWEST)


if __name__ == "__main__":
    main()
