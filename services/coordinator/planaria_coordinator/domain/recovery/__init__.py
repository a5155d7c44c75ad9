"""Change a job's plan: after a loss, or while training continues.

A recovery after a loss, in order:

    lost_engines, broken_communication, overdue   notice a loss, a hang, an overdue answer
    opening                  store generation g + 1 before any engine hears of it
    fencing                  fence every engine, find T*
    roll_forward             late engines commit step T*-1 from its record, and so reach T*
    version_reached          all have T*: what follows
    finish_step, activation  healthy pipelines finish the step in flight
    regrowing, online_change plan new pipelines while training continues
    handover                 stage the next plan, switch at one commit
    transition_completion    training goes on: record the change (recovery_costs, recovery_record)

Without a healthy pipeline, version_reached leads to placement/choose_plan, copy_layers and
activation. A planned change (a node joins or drains) begins at online_change. `transition` is the
state of a change under way.
"""
