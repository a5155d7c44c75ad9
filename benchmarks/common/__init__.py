"""What several measurements need: traces, intervals, a cluster with a job on it, results."""
