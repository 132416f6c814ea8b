"""Several processes of a job as forks of one that has imported torch: many cases for the price of one start."""

import json
import multiprocessing
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from app.commands import COMMANDS
from app.config.app_config import CONFIG_DIR, AppConfig, validate
from app.record.directory import RunDirectory
from app.record.documents import read_summary
from app.runtime import platform
from app.runtime.environment import leave
from app.sharding import plan
from app.training import session
from app.training.loop import TrainingRun
from common.cli import run
from common.compose import compose_config
from common.documents import plain_object
from data_prep.dataset.format import load_manifest
from tests.app.conftest import launched_environment
from tests.app.run_files import losses

TIMEOUT_SECONDS = 900


def run_group(cases: Sequence[Sequence[str]], world_size: int, out: Path, local_world_size: int = 0) -> list[Any]:
    """Train a whole run of each case (a list of overrides) on `world_size` processes, `local_world_size` on a machine.

    Returns for each case its summary, losses, plan, the sums over each parameter's values and the digest of the initial
    parameters, as rank 0 saw them.
    """
    named = [[f"run.dir={out.with_suffix('')}/{number}", *case] for number, case in enumerate(cases)]
    log, sizes = out.with_suffix(".log"), (world_size, local_world_size or world_size)
    assert start_group(train_runs, (named, str(out)), *sizes, log) == [0] * world_size, log.read_text()
    return json.loads(out.read_text(encoding="utf-8"))


def train_group(overrides: Sequence[str], world_size: int, cwd: Path) -> list[int | None]:
    """`python -m app.train` on `world_size` processes of one machine in `cwd`; their exit statuses."""
    return start_group(_train, (list(overrides), str(cwd)), world_size, world_size, cwd / "group.log")


def start_group(
    target: Callable[..., None], arguments: tuple[Any, ...], world_size: int, local_world_size: int, log: Path
) -> list[int | None]:
    """Call `target` on each process of a job, with the variables of torchrun; stderr goes to `log`. Exit statuses."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("forkserver")
    processes = []
    for rank in range(world_size):
        variables = launched_environment(rank, world_size, local_world_size, store.port)
        process = context.Process(target=_member, args=(variables, str(log), target, arguments))
        process.start()
        processes.append(process)
    for process in processes:
        process.join(TIMEOUT_SECONDS)
    return [process.exitcode for process in processes]


def _member(variables: dict[str, str], log: str, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ.update(variables)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    target(*arguments)


def _train(overrides: list[str], cwd: str) -> None:
    os.chdir(cwd)
    sys.argv = ["app.train", *overrides]
    run(COMMANDS["train"])


def train_runs(cases: Sequence[Sequence[str]], out: str) -> None:
    """Train a run of each case, one after the other, as one process of a job, and write what `run_group` returns."""
    configs = [compose_config(AppConfig, CONFIG_DIR, case) for case in cases]
    runtime = platform.start(configs[0].runtime, seed=0, deterministic=True)
    plan.BLOCK_BYTES = 1 << 10  # so that these small tables travel in several blocks
    results = []
    for config in configs:
        root, record = Path(config.data.path or ""), RunDirectory(Path(config.run.dir), runtime.rank)
        validate(config)
        runtime.on_rank_0(record.open)
        this = session.build(config, runtime, root, load_manifest(root))
        initial_digest = this.parameters_digest()
        TrainingRun(this, record, 0.0).train()
        sums: dict[str, float] = defaultdict(float)
        for name, values in this.parameters():
            sums[name] += float(values.astype("float64").sum())
        if runtime.rank == 0:
            written = read_summary(record.path)
            assert written is not None
            figures = {**plain_object(written), "losses": losses(record.path), "sums": sums}
            figures |= {"plan": plain_object(this.plan), "initial_digest": initial_digest}
            results.append(figures)
        record.release()
    if runtime.rank == 0:
        Path(out).write_text(json.dumps(results), encoding="utf-8")
    dist.barrier()
    leave(0)
