"""python -m tests.pretend_cuda.several CASES OUT: train a run of each list of overrides, and write their summaries."""

import json
import sys
from pathlib import Path

from tests.app.group import train_runs

if __name__ == "__main__":
    train_runs(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), sys.argv[2])
