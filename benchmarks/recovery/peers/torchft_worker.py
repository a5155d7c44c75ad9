"""A worker under torchft: a replica group is a pipeline of two ranks, gradients go across groups.

As torchft has it, a group that loses a rank is gone until it is restarted; the others continue with
their own microbatches, and those of the lost group are not trained in that step.
"""

import datetime
import os

import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo

from benchmarks.recovery.peers.pipeline import Commits, Half, Settings, run_step

ALL_REDUCE_TIMEOUT = datetime.timedelta(seconds=2)
PATIENCE = datetime.timedelta(seconds=60)
"""With what cannot hang on a dead group: quorums, and the other rank of this one."""


def main() -> None:
    group, num_groups = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["NUM_REPLICA_GROUPS"])
    dist.init_process_group("gloo")  # within the group: env://
    stage = dist.get_rank()
    settings = Settings()
    half = Half(settings, is_first=stage == 0)
    optimizer = torch.optim.AdamW(half.parameters(), lr=1e-3)

    def state() -> dict[str, object]:
        return {"model": half.state_dict(), "optimizer": optimizer.state_dict()}

    def load(saved: dict[str, dict[str, object]]) -> None:
        half.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=ALL_REDUCE_TIMEOUT),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=num_groups - 1,
        timeout=ALL_REDUCE_TIMEOUT,
        quorum_timeout=PATIENCE,
        replica_id=f"group-{group}",
    )
    commits = Commits(settings, f"torchft-{group}")
    while True:
        manager.start_quorum()
        optimizer.zero_grad()
        run_step(
            half,
            settings,
            manager.current_step(),
            range(settings.num_microbatches)[group::num_groups],
            send=lambda tensor: dist.isend(tensor, 1 - stage),
            receive=lambda tensor: dist.recv(tensor, 1 - stage),
        )
        reductions = [manager.allreduce(parameter.grad) for parameter in half.parameters()]
        for reduction in reductions:
            reduction.wait()
        step = manager.current_step()
        if manager.should_commit(timeout=PATIENCE):
            optimizer.step()
            if stage == 0:
                commits.write(step, num_groups=manager.num_participants())


if __name__ == "__main__":
    main()
