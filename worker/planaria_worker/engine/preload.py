"""Imported by the process that engines are forked from, for what importing it does.

Torch, transformers and the compiled kernels take seconds to load and a moment to inherit. Nothing
here may start a thread: a process with several cannot be forked safely.
"""

from planaria_worker.engine import assembly as assembly
from planaria_worker.engine.numerics import kernels

kernels.warm_up()
