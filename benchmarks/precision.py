"""How much precision a model needs: tables and dense layers in several, over several seeds, on the planted truth.

    python -m benchmarks.precision [--seeds 5] [--rows 200000] [--steps N] [--settings fp32 tables_fp16 ...]
                                   [--out FILE.json] [--report FILE.html]

Each setting trains the same runs (`app.train`, the quickstart's synthetic day), one for each seed, settings in turn.
AUC and NE are given as means with 95% confidence intervals (Student's t over seeds), and as paired differences from
fp32, seed by seed. What a platform does not have (TF32 and bf16 tables on CPU) is named, not left out in silence.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from app.report.statistics import spread
from benchmarks.result_file import write_result

REPOSITORY = Path(__file__).resolve().parents[1]
BASE = "fp32"


class Setting(NamedTuple):
    """Overrides of the training."""

    train: tuple[str, ...] = ()


SETTINGS = {
    BASE: Setting(),
    "dense_tf32": Setting(("runtime.precision=tf32",)),
    "dense_bf16": Setting(("runtime.precision=bf16",)),
    "tables_fp16": Setting(("model.tables.storage=fp16",)),
    "tables_bf16": Setting(("model.tables.storage=bf16",)),
    "tables_fp16_dense_bf16": Setting(("model.tables.storage=fp16", "runtime.precision=bf16")),
}


def main() -> None:
    """Run the sweep and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--steps", type=int, help="steps of a run; without it, one epoch")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--report", type=Path, help="an HTML report of the runs side by side")
    arguments = parser.parse_args()
    names = [BASE, *(name for name in arguments.settings if name != BASE)]
    sweep: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as directory:
        for seed in range(arguments.seeds):
            for name in names:
                if name in missing:
                    continue
                try:
                    sweep[name].append(figures_of(Path(directory), name, seed, arguments))
                except Unavailable as error:
                    missing[name] = str(error)
                print(
                    f"seed {seed}: {name} {sweep[name][-1] if name not in missing else missing[name]}", file=sys.stderr
                )
        if arguments.report:
            runs = [f"runs/{name}_0" for name in names if (Path(directory) / f"runs/{name}_0").is_dir()]
            call(["app.report", f"runs={json.dumps(runs)}", f"out={arguments.report.resolve()}"], Path(directory))
    print_table(sweep, missing)
    write_result(arguments, {"runs": sweep, "unavailable": missing})


class Unavailable(Exception):
    """This platform does not have a setting."""


def figures_of(directory: Path, name: str, seed: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Train one run."""
    setting = SETTINGS[name]
    steps = [f"train.max_steps={arguments.steps}"] if arguments.steps else []
    call(
        [
            "app.train",
            f"run.name={name}_{seed}",
            f"train.seed={seed}",
            f"data.synthetic.rows={arguments.rows}",
            "eval.split=test",
            "train.eval_every_steps=null",
            "baselines=false",
            *steps,
            *setting.train,
        ],
        directory,
    )
    run = directory / f"runs/{name}_{seed}"
    summary = json.loads((run / "summary.json").read_bytes())
    tables = json.loads((run / "manifest.json").read_bytes())["tables"].values()
    return {
        "auc": summary["eval"]["auc"],
        "ne": summary["eval"]["ne"],
        "samples_per_second": summary["throughput"]["samples_per_second"],
        "table_mib": sum(table["bytes"] for table in tables) / 2**20,
    }


def call(arguments: list[str], directory: Path) -> str:
    """Run a module of this project in `directory`; what it printed.

    Raises:
        Unavailable: it was refused (exit status 2), for the reason it gave.
    """
    command = [sys.executable, "-m", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    if process.returncode == 2:
        raise Unavailable(process.stderr.strip().splitlines()[-1])
    if process.returncode:
        raise SystemExit(process.stderr)
    return process.stdout


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half the width of its 95% confidence interval; NaN of one value."""
    mean, _, low, _ = spread(values)
    return mean, float("nan") if low is None else mean - low


def print_table(sweep: dict[str, list[dict[str, float]]], missing: dict[str, str]) -> None:
    """A Markdown table."""
    print("| | AUC | AUC minus fp32's | NE | samples/s | tables, MiB |\n|---|---|---|---|---|---|")
    for name, runs in sweep.items():
        if not runs:
            print(f"| {name} | not here: {missing[name]} | | | | |")
            continue
        auc, ne = (interval([run[key] for run in runs]) for key in ("auc", "ne"))
        paired = interval([run["auc"] - base["auc"] for run, base in zip(runs, sweep[BASE], strict=True)])
        rates = [run["samples_per_second"] for run in runs if "samples_per_second" in run]
        rate = f"{statistics.median(rates):,.0f}" if rates else ""
        print(
            f"| {name} | {auc[0]:.5f} ± {auc[1]:.5f} | {paired[0]:+.5f} ± {paired[1]:.5f} | "
            f"{ne[0]:.5f} ± {ne[1]:.5f} | {rate} | {runs[0]['table_mib']:,.1f} |"
        )


if __name__ == "__main__":
    main()
