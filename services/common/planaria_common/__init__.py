"""What every service shares: settings, logging, errors, gRPC plumbing."""
