"""python -m tests.pretend_cuda -m MODULE [ARGUMENT ...], or SCRIPT [ARGUMENT ...]: run it on a pretended CUDA device.

So do the Python processes that it starts.
"""

import os
import runpy
import sys
from pathlib import Path

from tests.pretend_cuda import device


def main(arguments: list[str]) -> None:
    if not arguments or arguments == ["-m"]:
        sys.exit(__doc__)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [device.PYTHON_PATH, os.environ.get("PYTHONPATH")]))
    device.install_on_import()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
