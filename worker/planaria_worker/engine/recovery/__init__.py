"""What an engine does when the plan changes: fence, roll forward, staging, handover.

A node is lost. In each surviving engine, in this order:

    failure_detector.py `FailureDetector`    a connection to a peer closes: report that at once
    process/directives.py `_quiesce`     the coordinator fences: no commit for an older generation
    ../fence.py `Fence`                  orders that against the commit point of a step
    training/trainer.py `Trainer.fence`  a broken pipeline halts; a healthy one computes on
    retained_work.py `RetainedWork`      what a healthy pipeline keeps of the step in flight
    process/directives.py `_report_fence`    report that, as soon as no commit is half applied
    training/trainer.py `roll_forward`   another engine committed the step: commit it here too,
    roll_forward.py `decide_roll_forward`    from complete sums, or else the layers are stale
    layers/layer_tasks.py `obtain`       copy missing and stale layers from peers
    training/activator.py `accept`       build the groups of the next plan, then train: in a new
                                         context, or in the one that a healthy pipeline kept

A change without a loss does not stop training:

    staging.py `StagedChange`            build groups and follow layers while training continues
    handover.py `Handover.switch`        vote with a mark; the commit with all marks is the switch
    training/training_loop.py `_go_on`   at that commit: `Handover.renew` if the pipeline stays,
                                         else `TrainingLoop.switch`
    training/trainer.py `_join`          an engine that does not vote yet enters at that commit

plan_request.py is what a new plan asks of an engine; current_training.py has what all of these
change: the context, the retained work, the newest commit.
"""
