"""Programs on pretended GPUs, runs of training among them, and what they wrote."""

import json
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore

from tests.app.conftest import app_environment, launched_environment
from tests.fast_python import fast_python
from tests.pretend_cuda import device

DEVICES = {"PYTHONPATH": device.PYTHON_PATH, "PRETEND_CUDA_DEVICES": "2"}
LIMIT_SECONDS = 600  # a slow, busy machine takes a minute for what takes seconds elsewhere
# SGD: torch's other optimizers are fused on a CPU and go by lists of tensors on a GPU, which rounds differently.
TINY = ["model.dense_arch=[32,16]", "model.over_arch=[32,1]", "train.global_batch_size=64", "train.log_every_steps=5"]
TINY += ["train.eval_every_steps=100", "train.max_steps=14", "runtime.num_threads=1", "optimizer=sgd"]
TINY += ["optimizer.lr=0.1", "sharding.types=table_wise", "baselines=false", "runtime.compile=none"]


def run(
    module: str, *arguments: str, cwd: Path, processes: int = 1, environment: Mapping[str, str] = {}
) -> "subprocess.CompletedProcess[str]":
    """What `python -m module arguments` does on each of `processes` processes of a machine with two pretended GPUs.

    It writes `.stdout` and `.stderr` in cwd. The status is the lowest that is not 0: of those ended by a signal first.
    """
    cwd.mkdir(parents=True, exist_ok=True)
    command_line = [str(fast_python(**DEVICES)), "-m", "tests.pretend_cuda", "-m", module, *arguments]
    variables = {**app_environment(), **DEVICES, **environment}
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    streams = cwd / ".stdout", cwd / ".stderr"
    running: list[subprocess.Popen[bytes]] = []
    try:
        with streams[0].open("wb") as out, streams[1].open("wb") as err:
            for rank in range(processes):
                env = variables | (
                    launched_environment(rank, processes, processes, store.port) if processes > 1 else {}
                )
                running.append(
                    subprocess.Popen(command_line, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
                )
        statuses = sorted(process.wait(LIMIT_SECONDS) for process in running)
    finally:
        for process in running:
            process.kill()
    status = next(filter(None, statuses), 0)
    return subprocess.CompletedProcess(command_line, status, *(path.read_text() for path in streams))


def command(name: str, directory: Path, *arguments: str, **how: Any) -> str:
    """What `python -m app.name` (or a module of tests) prints on stdout; it must succeed; `how` is for `run`.

    Of some hundred programs one ends in a segmentation fault within libtorch, where the pretended device's tensors are
    freed: it is started again, once, with a warning.
    """
    module = name if "." in name else f"app.{name}"
    process = run(module, *arguments, cwd=directory, **how)
    if process.returncode == -signal.SIGSEGV:
        warnings.warn(f"{module}: a segmentation fault of the pretended device", stacklevel=2)
        process = run(module, *arguments, cwd=directory, **how)
    assert process.returncode == 0, process.stderr
    return process.stdout


def train(directory: Path, data: Path, platform: str, *overrides: str, **how: Any) -> dict[str, Any]:
    """The summary of a whole run in `directory`/run; `how` is for `command`."""
    command("train", directory, *of_run(directory, data, platform), *overrides, **how)
    return summary(directory)


def train_several(
    directory: Path, data: Path, platform: str, cases: Mapping[str, Sequence[str]], **how: Any
) -> dict[str, dict[str, Any]]:
    """The summary of a run of each case, one after the other in the same processes."""
    directory.mkdir()
    runs = [[*of_run(directory / str(n), data, platform), *case] for n, case in enumerate(cases.values())]
    (directory / "cases").write_text(json.dumps(runs))
    command("tests.pretend_cuda.runs", directory, "cases", "out", **how)
    return dict(zip(cases, json.loads((directory / "out").read_text()), strict=True))


def of_run(directory: Path, data: Path, platform: str) -> list[str]:
    """The overrides of a small run in `directory`/run."""
    return [*TINY, f"data.path={data}", f"runtime.platform={platform}", "run.name=run", f"run.dir={directory}/run"]


def differing(runs: Mapping[str, dict[str, Any]], others: Mapping[str, dict[str, Any]]) -> list[str]:
    """The cases whose digests of parameters and losses, or whose evaluations differ."""
    return [case for case in runs if not same(runs[case], others[case])]


def same(run: dict[str, Any], other: dict[str, Any]) -> bool:
    return (run["digest"], run["eval"]) == (other["digest"], other["eval"])


def summary(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "run/summary.json").read_text())


if __name__ == "__main__":
    from tests.app.group import train_runs

    train_runs(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), sys.argv[2])
