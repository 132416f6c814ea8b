"""Runs of app's commands on pretended GPUs, and what they wrote."""

import json
import signal
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.pretend_cuda.machine import Machine

# SGD: torch's other optimizers are fused on a CPU and go by lists of tensors on a GPU, which rounds differently.
TINY = ["model.dense_arch=[32,16]", "model.over_arch=[32,1]", "train.global_batch_size=64", "train.log_every_steps=5"]
TINY += ["train.eval_every_steps=100"]
TINY += ["train.max_steps=14", "runtime.num_threads=1", "optimizer=sgd", "optimizer.lr=0.1"]
TINY += ["sharding.types=table_wise", "baselines=false", "runtime.compile=none"]


def train(
    machine: Machine,
    directory: Path,
    data: Path,
    platform: str,
    *overrides: str,
    processes: int = 1,
    environment: Mapping[str, str] = {},
) -> dict[str, Any]:
    """The summary of a whole run in `directory`/run."""
    arguments = [*of_run(directory, data, platform), *overrides]
    command(machine, "train", directory, *arguments, processes=processes, environment=environment)
    return summary(directory)


def train_several(
    machine: Machine,
    directory: Path,
    data: Path,
    platform: str,
    cases: Mapping[str, Sequence[str]],
    processes: int = 1,
    environment: Mapping[str, str] = {},
) -> dict[str, dict[str, Any]]:
    """The summary of a run of each case, one after the other in the same processes."""
    directory.mkdir()
    runs = [
        [*of_run(directory / str(number), data, platform), *overrides]
        for number, overrides in enumerate(cases.values())
    ]
    (directory / "cases").write_text(json.dumps(runs))
    module = "tests.pretend_cuda.several"
    command(machine, module, directory, "cases", "out", processes=processes, environment=environment)
    return dict(zip(cases, json.loads((directory / "out").read_text()), strict=True))


def of_run(directory: Path, data: Path, platform: str) -> list[str]:
    """The overrides of a small run in `directory`/run."""
    return [*TINY, f"data.path={data}", f"runtime.platform={platform}", "run.name=run", f"run.dir={directory}/run"]


def differing(runs: Mapping[str, dict[str, Any]], others: Mapping[str, dict[str, Any]]) -> list[str]:
    """The cases whose digests of parameters and losses, or whose evaluations differ."""
    return [case for case in runs if not same(runs[case], others[case])]


def same(run: dict[str, Any], other: dict[str, Any]) -> bool:
    return (run["digest"], run["eval"]) == (other["digest"], other["eval"])


def command(
    machine: Machine,
    name: str,
    directory: Path,
    *arguments: str,
    processes: int = 1,
    environment: Mapping[str, str] = {},
) -> str:
    """What `python -m app.name` (or a module of tests) prints on stdout; it must succeed.

    Of some hundred programs one ends in a segmentation fault within libtorch, where the pretended device's tensors are
    freed: it is started again, once, with a warning.
    """
    module = name if "." in name else f"app.{name}"
    process = machine.run(module, *arguments, cwd=directory, processes=processes, environment=environment)
    if process.returncode == -signal.SIGSEGV:
        warnings.warn(f"{module}: a segmentation fault of the pretended device", stacklevel=2)
        process = machine.run(module, *arguments, cwd=directory, processes=processes, environment=environment)
    assert process.returncode == 0, process.stderr
    return process.stdout


def summary(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "run/summary.json").read_text())


def losses(directory: Path) -> list[float]:
    """Mean losses of the lines that training logged."""
    events = map(json.loads, (directory / "run/metrics.jsonl").read_text().splitlines())
    return [event["loss"] for event in events if event["event"] == "train"]
