"""What an engine does when the plan changes: fence, roll forward, staging, handover.

Paths are from engine/. A node is lost. In each surviving engine, in this order:

    recovery/failure_detector.py         a connection to a peer closes: report that at once
    process/directives.py `_quiesce`     the coordinator fences: no commit for an older generation
    fence.py `Fence`                     orders that against the commit point of a step
    training/trainer.py `end_commit_attempts`    a broken pipeline halts; a healthy one computes on
    recovery/retained_work.py            what a healthy pipeline keeps of the step in flight
    process/directives.py `_report_fence`    report that, as soon as no commit is half applied
    training/trainer.py `roll_forward`   another engine committed the step: commit it here too,
    recovery/roll_forward.py             from complete sums, or else the layers are stale
    layers/layer_tasks.py `obtain`       copy missing and stale layers from peers
    training/activator.py `accept`       build the groups of the next plan, then train: in a new
                                         context, or in the one that a healthy pipeline kept

A change without a loss does not stop training:

    recovery/staging.py `StagedChange`   build groups and follow layers while training continues
    recovery/handover.py `mark_for_switch`    vote with a mark, and switch at the commit with all
    training/training_loop.py `_go_on`   at that commit: `Handover.renew` switches in the context
                                         that an unchanged pipeline keeps, else
                                         `TrainingLoop.switch` switches to the staged one
    training/trainer.py `_switch_as_joiner`    an engine that does not vote yet, at that commit

recovery/plan_request.py is what a new plan asks of an engine; recovery/current_training.py has what
all of these change: the context, the retained work, the newest commit.
"""
