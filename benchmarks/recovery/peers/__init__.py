"""The same model and the same nodes, kept alive by what others offer."""
