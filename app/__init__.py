"""Train, evaluate and record DLRM on the shards that `data_prep` writes."""

import os
import sys

from common import signals
from common.processor import announces_missing_tiles

if sys.argv[0] == "-m":  # `python -m app.x` imports torch for seconds; common.cli takes over
    signals.end_at_once()

# Before torch loads OpenMP: spinning threads are thirty times slower on a machine with other work.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if announces_missing_tiles():  # before oneDNN's first product
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# Before MKL's first product: sums of its products then do not depend on the number of threads.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

# c10d warns of lost peers with stacks of C++; app.launch says itself who did not come.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL" if "app.launch" in sys.orig_argv[1:3] else "ERROR")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch.profiler's library logs its start and stop
