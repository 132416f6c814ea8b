"""Modules and compiled kernels that the fork server loads once for all workers."""

import gc

gc.disable()  # While modules are loaded it would only search ever more objects.

from common.machine import keep_freed_memory  # noqa: E402
from data_prep.stages import write  # noqa: E402, F401  # the last stage
from data_prep.stages.parse import compile_kernels  # noqa: E402

keep_freed_memory()
compile_kernels()
gc.freeze()  # A worker's garbage collection would write to all objects and so copy their pages.
gc.enable()
