"""Train, evaluate and record DLRM on the shards that `data_prep` writes."""

import os
import sys

from common import signals
from common.machine import announces_missing_tiles

# `python -m app.x` imports torch, which takes seconds; common.cli takes over afterwards.
if sys.argv[0] == "-m":
    signals.end_at_once()

# Set this before torch loads OpenMP: spinning threads are thirty times slower on a machine with other work.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# Set this before oneDNN's first product, which would use tiles (AMX) that this processor announces and does not have.
if announces_missing_tiles():
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# Set this before MKL's first product: sums of its products then do not depend on the number of threads.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

# c10d warns of lost peers with C++ stack traces; app.launch itself reports which machines are missing.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL" if "app.launch" in sys.orig_argv[1:3] else "ERROR")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch.profiler's library logs its start and stop otherwise
