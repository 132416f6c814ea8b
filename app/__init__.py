"""Train, evaluate and record DLRM on the shards that `data_prep` writes."""

import os
import signal
import sys

# Before torch loads OpenMP: spinning threads are thirty times slower on a machine with other work.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch.profiler's library logs its start and stop

# `python -m app.x` imports torch for seconds: Ctrl-C then ends it without a traceback; common.cli takes over.
if sys.argv[0] == "-m" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
