"""The planner as a gRPC service."""
