"""Models as lists of layers that can be placed, built, filled and dropped one by one."""
