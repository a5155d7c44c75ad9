"""The planner: templates, plans and reconfigurations as pure functions, and a stateless server."""
