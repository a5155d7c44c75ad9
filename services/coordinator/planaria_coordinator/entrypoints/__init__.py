"""How requests enter: REST and gRPC over one application layer."""
