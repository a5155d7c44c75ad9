"""REST, server-sent events, Prometheus metrics and the page."""
