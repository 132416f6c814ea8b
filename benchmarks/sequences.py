"""What a history is worth: HSTU against a DLRM that sees the last event only, by samples, on events of known truth.

    python -m benchmarks.sequences [--users 8000] [--every 436] [--app KEY=VALUE ...] [--out FILE.json]

Both learn from the same samples of `data=synthetic_events` in the same order, with the same tables of users, items,
artists, albums and crosses, and are evaluated on the same last window. DLRM's rows are the samples with their last
event alone: its item, artist, album and action, the minutes since it, and the hour.
The best is what the probabilities behind the labels score, on those labels. AUCs, not times: nothing here is timed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.config import DataConfig
from app.config.data import EventConfig, HistoryKind
from app.data.events import EventLog
from benchmarks.result_file import write_result
from data_prep.dataset.format import load_manifest

REPOSITORY = Path(__file__).resolve().parents[1]
BATCH, DIM = 512, 32
HSTU = ["model=hstu", f"model.embedding_dim={DIM}"]
DLRM = ["model=dlrm", f"model.embedding_dim={DIM}", f"model.dense_arch=[64,{DIM}]", "model.over_arch=[128,64,1]",
        "optimizer=rowwise_adagrad_adam", "data.shuffle=false"]  # fmt: skip


def main() -> None:
    """Train both and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=8000)
    parser.add_argument("--every", type=int, default=436, help=f"steps of {BATCH} samples between evaluations")
    parser.add_argument("--app", nargs="*", default=[], metavar="KEY=VALUE", help="more overrides of app.train")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        results = measure(arguments, Path(directory))
    print(markdown(results))
    write_result(arguments, results)


def measure(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """AUCs by samples of each model, and the best."""
    events, rows = work / "events", work / "rows"
    run("data_prep", "data=synthetic_events", f"data.synthetic_events.users={arguments.users}", f"data.path={events}")
    run("data_prep", *write_rows(events, work), f"data.path={rows}", "data=custom")
    shared = [f"train.global_batch_size={BATCH}", f"train.eval_every_steps={arguments.every}", "train.epochs=1",
              "eval.split=val", "checkpoint.keep_best=false", "record.tensorboard=false", "baselines=false",
              *arguments.app]  # fmt: skip
    found, evaluated = {}, set()
    given = {"DLRM": [f"data.path={rows}", *DLRM], "HSTU": [f"data.path={events}", *HSTU]}
    for name, overrides in given.items():
        run("app.train", f"run.dir={work / name}", f"run.name={name}", *overrides, *shared)
        lines = map(json.loads, (work / name / "metrics.jsonl").read_text().splitlines())
        evaluations = [line for line in lines if line["event"] == "eval"]
        found[name] = {line["samples"]: line["auc"] for line in evaluations}
        evaluated |= {line["eval_samples"] for line in evaluations}
    assert len(evaluated) == 1, evaluated
    return {"auc": found, "best": load_manifest(events).extra["bayes"]["sampled_auc"]}


def write_rows(root: Path, work: Path) -> list[str]:
    """Samples with their last event alone, as a user's own table; the keys that name it.

    Of the last file, the held-out day, the first half becomes val: so the evaluated window is in it twice.
    """
    last = EventConfig(history=HistoryKind.last_n, history_length=1)
    log = EventLog(root, load_manifest(root), DataConfig(events=last))
    columns: dict[str, Any] = {}
    for name, repeats in (("train", 1), ("val", 2)):
        split, parts = log.split(name, 0, 1), []
        times = np.concatenate([log.events.times[log.anchors.window(number)] for number in split.windows])
        for batch in split.eval_batches(BATCH):
            assert batch.sequences is not None
            ids = {key: each.values() for key, each in batch.sparse_features.to_dict().items()}
            known = {"action": batch.sequences.actions, "then": batch.sequences.times, "label": batch.labels.int()}
            parts.append({key: each[: batch.num_valid].numpy() for key, each in {**ids, **known}.items()})
        columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        columns["minutes"] = (times - columns.pop("then")) // 60
        columns["hour"] = times // 3600 % 24
        tiled = {key: np.tile(each, repeats) for key, each in columns.items()}
        pq.write_table(pa.table(tiled), work / f"{name}.parquet")
    sparse = ", ".join(name for name in columns if name not in ("label", "minutes"))
    (work / "rows.yaml").write_text(f"label: label\ndense: [minutes]\nsparse: [{sparse}]\n")
    files = f"data.raw=[{work}/train.parquet,{work}/val.parquet]"
    return [files, f"data.schema={work}/rows.yaml", "data.split.method=last_day"]


def run(module: str, *overrides: str) -> None:
    """Run an entry point, its messages passed on if it fails."""
    command = [sys.executable, "-m", module, *overrides]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)


def markdown(results: dict[str, Any]) -> str:
    """A table: samples, an AUC a model, the best."""
    names, best = list(results["auc"]), results["best"]
    steps = sorted({samples for found in results["auc"].values() for samples in found})
    lines = [f"| samples | {' | '.join(names)} | best |", "|" + "---|" * (len(names) + 2)]
    for samples in steps:
        aucs = [f"{results['auc'][name].get(samples, float('nan')):.3f}" for name in names]
        lines.append(f"| {samples:,} | {' | '.join(aucs)} | {best:.3f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
