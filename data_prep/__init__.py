"""Raw clicks to binary shards. NumPy world: no torch, nothing of `app`."""

import sys

from common import signals

if sys.argv[0] == "-m":
    signals.end_at_once()
