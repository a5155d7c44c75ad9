"""A plan as one engine sees it: its stage, the groups it joins, what it sums with whom."""
