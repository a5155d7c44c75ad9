"""Nodes and engines: directives, their outcomes, liveness, preparing engines."""
