"""Which engine runs which layers: plans, planner queries, replicas, copies."""
