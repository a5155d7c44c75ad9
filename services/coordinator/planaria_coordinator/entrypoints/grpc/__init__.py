"""gRPC services; protobuf messages stay inside this package.

`worker_service.WorkerServicer(coordinator.sessions)` serves agents.
"""
