"""python -m tests.pretend_cuda.server: runs programs as forks that share one import of torch.

A line of JSON on stdin asks for one: {"module", "arguments", "cwd", "processes", "environment"}. It runs as
`python -m module arguments` does, and writes `.stdout` and `.stderr` in cwd; several processes get torchrun's
environment. The answer on stdout is the list of their exit statuses.
"""

import importlib
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

PRELOAD = (
    "app.trackers",
    "tests.app.inject",
    "tests.app.group",
    "tests.data_prep.preload",
    "tests.app.preload",
)


def main() -> None:
    for name in PRELOAD:
        importlib.import_module(name)
    stores: list[Any] = []  # a store lasts as long as the processes that meet in it
    for line in sys.stdin:
        request = json.loads(line)
        launched = _launched(request["processes"], stores) if request["processes"] > 1 else {}
        pids = [_fork(request, {**launched, **_rank(rank, launched)}) for rank in range(request["processes"])]
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps(statuses), flush=True)
    os._exit(0)  # nothing is left to be torn down


def _launched(processes: int, stores: list[Any]) -> dict[str, str]:
    from torch.distributed import TCPStore

    stores.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(stores[-1].port),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def _rank(rank: int, launched: dict[str, str]) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(rank)} if launched else {}


def _fork(request: dict[str, Any], environment: dict[str, str]) -> int:
    pid = os.fork()
    if pid == 0:
        _run(request, environment)
    return pid


def _run(request: dict[str, Any], environment: dict[str, str]) -> NoReturn:
    os.chdir(request["cwd"])
    os.environ.update({**environment, **request["environment"]})
    Path(f".pid.{os.environ.get('RANK', '0')}").write_text(str(os.getpid()), encoding="utf-8")  # for tests.app.inject
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, name in ((1, ".stdout"), (2, ".stderr")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    sys.argv = [request["module"], *request["arguments"]]
    status = 1
    try:
        if "PRETEND_CUDA_COUNTS" in os.environ:
            from tests.pretend_cuda import counting

            counting.count_steps(os.environ["PRETEND_CUDA_COUNTS"])
        if fault := os.environ.get("FAULT"):
            from tests.app import inject

            inject.install(fault)
        sys.modules.pop(request["module"], None)  # as in a fresh interpreter
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:  # noqa: BLE001  # a fork must not return into the server
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
