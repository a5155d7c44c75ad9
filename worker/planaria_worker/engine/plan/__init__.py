"""A plan as one engine sees it: its stage, its groups, and which layers it sums with whom."""
