"""Train, evaluate and record DLRM on the shards that `data_prep` writes."""

import os

# Before torch loads OpenMP: threads that spin while they wait are thirty times slower on a machine with other work.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
