"""The plans that most tests of failures begin with."""

from support.engines.small_plans import Pipeline

BEFORE = [Pipeline([("a", 3), ("b", 4)], [0, 1, 2]), Pipeline([("c", 5), ("d", 2)], [3, 4, 5])]
WITHOUT_B = [Pipeline([("a", 7)], [0, 1]), Pipeline([("c", 5), ("d", 2)], [2, 3, 4, 5])]
FAILED_STEP = 2
