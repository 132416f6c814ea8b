"""What each step sends to the pretended device, and where the host waits for it.

`count_steps` appends a line of JSON for each step to `<path>.<rank>`: {"sent": {operator: count}, "waits": {operation:
count}}. A step lasts from the end of one optimizer step to the end of the next; views are not counted.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any


def count_steps(path: str) -> None:
    """From now on in this process, whose optimizer is TorchRec's CombinedOptimizer."""
    import torch
    from torchrec.optim.keyed import CombinedOptimizer

    ops, step = torch.ops.pretend_cuda, CombinedOptimizer.step
    before = {"sent": Counter[str](), "waits": Counter[str]()}
    depth = 0

    def counted(self: Any, *arguments: Any, **keywords: Any) -> None:
        nonlocal depth
        depth += 1
        step(self, *arguments, **keywords)
        depth -= 1
        if depth:  # combined optimizers may be parts of one
            return
        now = {"sent": Counter(dict(ops.sent())), "waits": Counter(dict(ops.waits()))}
        line = {kind: dict(now[kind] - before[kind]) for kind in now}
        before.update(now)
        with Path(f"{path}.{os.environ.get('RANK', '0')}").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    CombinedOptimizer.step = counted


def read_steps(path: Path) -> list[dict[str, dict[str, int]]]:
    """The lines of one process's file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
