"""Jobs, nodes, generations, directives and events in SQLite or PostgreSQL."""
