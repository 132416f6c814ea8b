"""What the server that forks workers loads once for all of them: the modules and the compiled kernels."""

from common.memory import keep_freed_memory
from data_prep import stages  # noqa: F401  # imports all that tasks need
from data_prep.kernels import compile_kernels

keep_freed_memory()
compile_kernels()
