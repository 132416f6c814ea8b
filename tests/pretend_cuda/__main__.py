"""python -m tests.pretend_cuda -m MODULE [ARGUMENT ...], or SCRIPT [ARGUMENT ...]: run it on a pretended CUDA device.

So do the Python processes that it starts. Environment, besides the device's: PRETEND_CUDA_COUNTS, a file (see
`count_steps`).
"""

import json
import os
import runpy
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.pretend_cuda import device


def main(arguments: list[str]) -> None:
    if not arguments or arguments == ["-m"]:
        sys.exit(__doc__)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [device.PYTHON_PATH, os.environ.get("PYTHONPATH")]))
    device.install_on_import()
    if "PRETEND_CUDA_COUNTS" in os.environ:
        count_steps(Path(f"{os.environ['PRETEND_CUDA_COUNTS']}.{os.environ.get('RANK', '0')}"))
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")


def count_steps(path: Path) -> None:
    """Append a line of JSON for each step: {"sent": {operator: count}, "waits": {operation: count}}.

    A step lasts from the end of one step of TorchRec's CombinedOptimizer to the end of the next; views are not counted.
    """
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
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    CombinedOptimizer.step = counted


if __name__ == "__main__":
    main(sys.argv[1:])
