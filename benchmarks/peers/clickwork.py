"""Clickwork: `python -m app.train` as it is, evaluations and log on; its checkpoint at the end is not timed."""

import json
import subprocess
import sys

from benchmarks.peers.curve import Point, Task
from benchmarks.peers.rows import DENSE_ARCH, DIM, EPS, OVER_ARCH, REPOSITORY


def run(task: Task) -> list[Point]:
    """Train and evaluate; a line of the log an evaluation, no checkpoint before the end."""
    return _run(task, "checkpoint.keep_best=false", f"train.log_every_steps={task.steps()}")


def run_in_bf16(task: Task) -> list[Point]:
    """The same with dense layers in bf16, tables in fp32."""
    return _run(task, "checkpoint.keep_best=false", f"train.log_every_steps={task.steps()}", "runtime.precision=bf16")


def run_without_graphs(task: Task) -> list[Point]:
    """The same with plain steps, where a GPU would replay graphs."""
    return _run(task, "checkpoint.keep_best=false", f"train.log_every_steps={task.steps()}", "runtime.compile=none")


def run_with_defaults(task: Task) -> list[Point]:
    """Train and evaluate as a user does: its checkpoints, the best kept, a line of the log at least each ten steps."""
    return _run(task, f"train.log_every_steps={min(10, task.steps())}")


def _run(task: Task, *more: str) -> list[Point]:
    directory = task.work / "run"
    overrides = [
        f"data.path={task.work / 'clickwork'}",
        f"run.dir={directory}",
        "checkpoint.resume=never",
        "checkpoint.overwrite=true",
        "baselines=false",
        f"model.embedding_dim={DIM}",
        f"model.dense_arch={list(DENSE_ARCH)}",
        f"model.over_arch={list(OVER_ARCH)}",
        "loss=bce",
        "optimizer=adagrad",
        f"optimizer.lr={task.rate}",
        f"optimizer.eps={EPS}",
        "schedule=constant",
        f"train.global_batch_size={task.batch}",
        f"train.eval_every_steps={task.steps()}",
        "train.warmup_steps_excluded=0",
        f"train.seed={task.seed}",
        f"runtime.num_threads={task.threads}",
        f"runtime.platform={'cpu' if task.device == 'cpu' else 'auto'}",
        *more,
    ]
    command = [sys.executable, "-m", "app.train", *(override.replace(" ", "") for override in overrides)]
    process = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(process.stderr)
    seconds, points = 0.0, []
    for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "train":
            seconds += event["steps"] * task.batch / event["samples_per_second"]
        elif event["event"] == "eval":
            points.append(Point(event["samples"], seconds, event["auc"]))
    return points
