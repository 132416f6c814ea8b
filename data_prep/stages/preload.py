"""What the server that forks workers loads once for all of them: the modules of all tasks and the compiled kernels."""

import gc

gc.disable()  # while modules are loaded it would look through ever more objects for nothing

from common.memory import keep_freed_memory  # noqa: E402
from data_prep.stages import expand_multi_hot  # noqa: E402, F401  # imports all that tasks need
from data_prep.stages.parse import compile_kernels  # noqa: E402

keep_freed_memory()
compile_kernels()
gc.freeze()  # or each worker would write to all objects when it looks for garbage, and copy their pages
gc.enable()
