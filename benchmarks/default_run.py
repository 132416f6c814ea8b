"""The commands that users type, with everything on, beside the same runs with all of it off and beside a bare loop.

    python -m benchmarks.default_run [--cases quickstart kaggle two_processes hstu] [--threads 1 2] [--rounds 7]
                                     [--out FILE]

Each round makes three runs in turn, every one a command of its own; which goes first changes from round to round:

  on    the default: evaluation, checkpoints in a thread, the best kept, TensorBoard, the report
  off   no evaluation, no checkpoint, no TensorBoard before the end
  bare  the same model, optimizer and rows in a plain loop: nothing is checked, measured or written

The figure is the median of samples/s over windows of `train.log_every_steps` after the first checkpoint's step. Windows
during which a checkpoint is being written are kept apart (`writing`); where the default waits for its checkpoints, as
it does for those of a best evaluation, there are none. Ratios are of one round; the table has their medians and
extremes. Ends with 1 if a median of `on / off` is below 0.97, or one of `writing / off` below 0.85, of at
least five rounds.

Two threads are the default on two cores, one is `runtime.num_threads=1`; two processes have one thread each.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.result_file import write_result

KINDS = ("on", "off", "bare")
OFF = [
    "checkpoint.every_steps=null",
    "checkpoint.keep_best=false",
    "train.eval_every_steps=null",
    "record.tensorboard=false",
]
LEAST, LEAST_WRITING = 0.97, 0.85  # of the speed with all of it off
LEAST_ROUNDS = 5


@dataclass
class Case:
    """What a user types after `python -m app.train`; steps of a run, and the step of its first checkpoint."""

    name: str
    overrides: list[str]
    steps: int
    first_checkpoint: int = 100  # the default
    processes: int = 1


CASES = [
    Case("quickstart", [], 250),
    Case(
        "kaggle",
        [
            "optimizer=sgd",
            "data.path=kaggle",
            "train.global_batch_size=2048",
            "train.eval_every_steps=60",
            "checkpoint.every_steps=60",
        ],
        160,
        first_checkpoint=60,
    ),
    Case("two_processes", [], 250, processes=2),
    Case("hstu", ["model=hstu", "data.source=synthetic_events", "data.path=events"], 180),
]
NAMES = [case.name for case in CASES]


def main() -> int:
    """Measure and print; with --bare, be the plain loop."""
    if sys.argv[1:2] == ["--bare"]:
        run_bare(sys.argv[2], sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, help="of each run, instead of the case's own")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        results = [
            measure(case, threads, arguments.rounds, arguments.steps, Path(scratch))
            for case in CASES
            if case.name in arguments.cases
            for threads in (arguments.threads if case.processes == 1 else [1])
        ]
    print_table(results)
    write_result(arguments, results)
    return 1 if any(is_slow(result) for result in results) else 0


def measure(case: Case, threads: int, rounds: int, steps: int | None, scratch: Path) -> dict[str, Any]:
    """Rounds of one case: samples/s of each kind of run."""
    limit = steps or case.steps
    make_dataset(case, scratch)
    figures: list[dict[str, float | None]] = []
    for number in range(rounds):
        rates: dict[str, float | None] = {}
        for kind in KINDS[number % len(KINDS) :] + KINDS[: number % len(KINDS)]:
            first = min(case.first_checkpoint, limit // 2)
            if kind == "bare":
                rates[kind] = median(bare_rates(case, threads, limit, scratch)[first:])
            else:
                quiet, writing = window_rates(run(case, kind, threads, limit, scratch), first)
                rates |= {kind: median(quiet)} | ({"writing": median(writing)} if kind == "on" else {})
        figures.append(rates)
        print(f"{case.name}, {threads} thread(s): round {number + 1} of {rounds} done", file=sys.stderr, flush=True)
    settings = {"case": case.name, "threads": threads, "processes": case.processes, "steps": limit}
    return {**settings, "rounds": figures}


def make_dataset(case: Case, scratch: Path) -> None:
    """What the case's command would generate at its first use."""
    if "data.path=kaggle" in case.overrides and not (scratch / "kaggle").exists():
        from benchmarks.training_loop import write_rows  # which imports torch
        from data_prep.dataset.format import save_manifest

        save_manifest(scratch / "kaggle", write_rows(scratch / "kaggle", evaluated_rows=20_000))
    elif "data.path=kaggle" not in case.overrides:
        train(case, scratch, "train.max_steps=1")


def run(case: Case, kind: str, threads: int, steps: int, scratch: Path) -> list[dict[str, Any]]:
    """Make one run; its events."""
    settings = [f"train.max_steps={steps}", "checkpoint.resume=never", "checkpoint.overwrite=true"]
    settings += OFF if kind == "off" else []
    settings += [f"runtime.num_threads={threads}"] if case.processes == 1 else []
    train(case, scratch, *settings)
    lines = (scratch / "runs" / case.name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def train(case: Case, scratch: Path, *settings: str) -> None:
    """Run `app.train` to its end."""
    execute(case, ["app.train", f"run.name={case.name}", *case.overrides, *settings, "baselines=false"], scratch)


def execute(case: Case, module: list[str], directory: Path) -> str:
    """Standard output of a module run there on the case's processes. Raises SystemExit if it fails."""
    launcher = ["app.launch", "--nproc-per-node", str(case.processes), "-m"] if case.processes > 1 else []
    command = [sys.executable, "-m", *launcher, *module]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    process = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: status {process.returncode}\n{process.stderr}")
    return process.stdout


def window_rates(events: Sequence[dict[str, Any]], first: int) -> tuple[list[float], list[float]]:
    """Samples/s of the windows after step `first`: those in which nothing was written, and the others."""
    ends = {event["step"]: event["seconds"] for event in events if event["event"] == "train"}
    # From the end of a checkpoint's step, after which an evaluation may come first, to the line that says it is whole.
    writes = [
        (ends[event["step"]], event["seconds"])
        for event in events
        if event["event"] == "checkpoint" and event["step"] in ends
    ]
    quiet: list[float] = []
    writing: list[float] = []
    for event in events:
        if event["event"] != "train" or event["step"] <= first:
            continue
        start = event["seconds"] - event["steps"] * event["samples"] / event["step"] / event["samples_per_second"]
        overlaps = any(start < end and begin < event["seconds"] for begin, end in writes)
        (writing if overlaps else quiet).append(event["samples_per_second"])
    return quiet, writing


def bare_rates(case: Case, threads: int, steps: int, scratch: Path) -> list[float]:
    """Samples/s of each step of the plain loop, means over windows of ten."""
    module = ["benchmarks.default_run", "--bare", str(threads), f"train.max_steps={steps}", *case.overrides]
    rates: list[float] = json.loads(execute(case, module, scratch).splitlines()[-1])
    return rates


def run_bare(threads: str, overrides: list[str]) -> None:
    """Train in a plain loop; print samples/s of each step, means over windows."""
    from app.config.app_config import CONFIG_DIR, AppConfig
    from app.config.train import RuntimeConfig
    from app.runtime import platform
    from app.training import session
    from common.compose import compose_config
    from data_prep.dataset.format import load_manifest

    config = compose_config(AppConfig, CONFIG_DIR, overrides)
    runtime = platform.start(RuntimeConfig(num_threads=int(threads)), seed=0, deterministic=False)
    root = config.data.root
    config = replace(config, data=replace(config.data, path=str(root)))
    train_session = session.build(config, runtime, root, load_manifest(root))
    size, steps = config.train.global_batch_size, config.train.max_steps or 1

    def batches() -> Iterator[Any]:
        for epoch in itertools.count():
            yield from train_session.split("train").train_batches(size, config.train.seed, epoch, 0)

    seconds = np.empty(steps)
    began = time.perf_counter()
    for step, batch in zip(range(steps), batches(), strict=False):
        train_session.optimizer.zero_grad()
        train_session.loss(train_session.forward(batch), batch.labels).backward()
        train_session.optimizer.step()
        ended = time.perf_counter()
        seconds[step], began = ended - began, ended
    if runtime.rank == 0:
        window = config.train.log_every_steps
        means = seconds[: steps // window * window].reshape(-1, window).mean(axis=1)
        print(json.dumps((size / np.repeat(means, window)).tolist()))
    platform.stop()


def median(values: Sequence[float]) -> float | None:
    """None of no values."""
    return float(np.median(values)) if values else None


def ratios(result: dict[str, Any], above: str, below: str) -> NDArray[np.float64]:
    """Of each round that has both."""
    pairs = [(one[above], one[below]) for one in result["rounds"] if one[above] and one[below]]
    return np.array([a / b for a, b in pairs])


def is_slow(result: dict[str, Any]) -> bool:
    """Whether a median ratio to the run with all of it off is below its bound; fewer than five say nothing."""
    bounds = (("on", LEAST), ("writing", LEAST_WRITING))
    values = [(ratios(result, kind, "off"), bound) for kind, bound in bounds]
    return any(len(ratio) >= LEAST_ROUNDS and float(np.median(ratio)) < bound for ratio, bound in values)


def print_table(results: Sequence[dict[str, Any]]) -> None:
    """A line a case."""
    columns = ("case", "processes", "threads", "on, samples/s", "on / off", "on / bare", "writing / off")
    print(f"| {' | '.join(columns)} |\n" + "|---" * len(columns) + "|")
    for result in results:
        speed = median([one["on"] for one in result["rounds"] if one["on"]])
        cells = [result["case"], str(result["processes"]), str(result["threads"]), f"{speed:,.0f}" if speed else ""]
        for above, below in (("on", "off"), ("on", "bare"), ("writing", "off")):
            values = ratios(result, above, below)
            spread = f"{np.median(values):.3f} ({values.min():.3f} to {values.max():.3f})" if len(values) else "none"
            cells.append(spread)
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
