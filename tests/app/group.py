"""Several processes of a job as forks of one that has imported torch: many cases for the price of one start."""

import json
import multiprocessing
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from app.commands import COMMANDS
from app.config.app_config import CONFIG_DIR, AppConfig, validate
from app.optimizer import set_learning_rate
from app.record.directory import RunDirectory
from app.record.documents import read_summary
from app.runtime import platform
from app.runtime.environment import leave
from app.sharding import plan
from app.training import session
from app.training.loop import TrainingRun
from common.cli import run
from common.compose import compose_config
from common.documents import plain, plain_object
from data_prep.dataset.format import load_manifest
from tests.app.conftest import launched_environment

TIMEOUT_SECONDS = 900


def run_group(cases: Sequence[Sequence[str]], world_size: int, out: Path, local_world_size: int = 0) -> list[Any]:
    """Train each case (a list of overrides) on `world_size` processes, `local_world_size` of them on a machine.

    Returns for each case its losses, the plan, the sums over each parameter's values and the digest of the initial
    parameters, as rank 0 saw them.
    """
    return _results(_cases, cases, world_size, out, local_world_size or world_size)


def run_whole(cases: Sequence[Sequence[str]], world_size: int, out: Path) -> list[Any]:
    """The summary of a whole run of each case (a list of overrides, with run.dir) on `world_size` processes."""
    return _results(train_runs, cases, world_size, out, world_size)


def _results(
    target: Callable[..., None], cases: Sequence[Sequence[str]], world_size: int, out: Path, local_world_size: int
) -> list[Any]:
    log, arguments = out.with_suffix(".log"), ([list(case) for case in cases], str(out))
    assert start_group(target, arguments, world_size, local_world_size, log) == [0] * world_size, log.read_text()
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


def _cases(cases: list[list[str]], out: str) -> None:
    config = compose_config(AppConfig, CONFIG_DIR, cases[0])
    runtime = platform.start(config.runtime, seed=0, deterministic=True)
    results = [_trained(case, runtime) for case in cases]
    if runtime.rank == 0:
        Path(out).write_text(json.dumps(results), encoding="utf-8")
    dist.barrier()
    leave(0)


def train_runs(cases: Sequence[Sequence[str]], out: str) -> None:
    """Train a whole run of each case, one after the other, as one process of a job, and write their summaries."""
    configs = [compose_config(AppConfig, CONFIG_DIR, case) for case in cases]
    runtime = platform.start(configs[0].runtime, seed=0, deterministic=True)
    summaries = []
    for config in configs:
        root, record = Path(config.data.path or ""), RunDirectory(Path(config.run.dir), runtime.rank)
        validate(config)
        runtime.on_rank_0(record.open)
        TrainingRun(session.build(config, runtime, root, load_manifest(root)), record, 0.0).train()
        summaries.append(read_summary(record.path) if runtime.rank == 0 else None)
        record.release()
    if runtime.rank == 0:
        Path(out).write_text(json.dumps(plain(summaries)), encoding="utf-8")
    dist.barrier()
    leave(0)


def _trained(overrides: list[str], runtime: platform.Runtime) -> dict[str, Any]:
    config = compose_config(AppConfig, CONFIG_DIR, overrides)
    validate(config)
    root = Path(config.data.path or "")
    this = session.build(config, runtime, root, load_manifest(root))
    plan.BLOCK_BYTES = 1 << 10  # so that these small tables travel in several blocks
    initial_digest = this.parameters_digest()
    losses: list[float] = []
    epoch = 0
    while len(losses) < (config.train.max_steps or 0):
        for batch in this.predictor.split("train").train_batches(config.train.global_batch_size, 0, epoch, 0):
            set_learning_rate(this.optimizer, config.optimizer.lr)
            this.optimizer.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(this.forward(batch), batch.labels)
            loss.backward()
            this.optimizer.step()
            losses.append(loss.item())
            if len(losses) == config.train.max_steps:
                break
        epoch += 1
    means = runtime.mean(torch.tensor(losses).numpy())
    sums: dict[str, float] = defaultdict(float)
    for name, values in this.parameters():
        sums[name] += float(values.astype("float64").sum())
    return {
        "losses": means.tolist(),
        "plan": plain_object(this.plan.to_document()),
        "sums": sums,
        "initial_digest": initial_digest,
    }
