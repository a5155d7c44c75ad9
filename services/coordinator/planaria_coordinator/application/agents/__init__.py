"""Sessions with agents and what they report."""
