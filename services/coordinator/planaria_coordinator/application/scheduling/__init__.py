"""Which job gets which nodes, and which plan."""
