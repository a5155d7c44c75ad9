"""Imported by the process that engines are forked from, for what importing it does.

Torch and the compiled kernels take seconds to load and a moment to inherit. Nothing here may start
a thread: a process with several cannot be forked safely.
"""

import gc

# The first backward pass would import it, which takes a third of a second.
from torch.fx.experimental import symbolic_shapes as symbolic_shapes

from planaria_worker.engine.numerics import kernels

kernels.warm_up()
gc.freeze()  # modules are never garbage: collections of engines need not go through them
