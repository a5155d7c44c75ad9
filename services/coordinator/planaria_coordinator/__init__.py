"""The coordinator: the only owner of state."""
