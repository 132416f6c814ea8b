"""DLRM as BARS trains it, by Clickwork and by FuxiCTR's own class and `fit`: what it learns, and the time of a step.

    python -m benchmarks.fuxictr curves --fuxictr CHECKOUT [--frappe DIRECTORY] [--seeds 1 2 3 4 5] [--out FILE]
    python -m benchmarks.fuxictr speed --fuxictr CHECKOUT [--rounds 5] [--steps 40] [--out FILE]

CHECKOUT is a clone of reczoo/FuxiCTR (measured at 0245987, 2.3.10), whose DLRM is in model_zoo; --peer-python is an
interpreter that has what it needs (benchmarks/peers/README.md). Both read the shards that
`data_prep` made of the same rows.

curves: recipe=bars_frappe_x1 on the rows of benchmarks.quality (of --frappe, or drawn), to the end that the validation
AUC gives it. For each seed the AUC of each epoch on val, and of the best epoch on test; the 95 % interval (Student's t)
of the difference. The seeds are each program's own, so a pair shares its number and nothing else.

speed: a training step at the shapes of criteo_x1 (20.9 million parameters in tables) and frappe_x1, batches of 4,096
drawn rows, with batch norm, dropout, L2 and clipping. Ours is the whole of `python -m app.train`, which reads and
shuffles rows (step_ms_p50 of summary.json); theirs is `train_step` alone, its batches being in memory before. In turn,
--rounds times.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

REPOSITORY = Path(__file__).resolve().parents[1]
BATCH = 4096
WARM_UP = 5  # steps that are not timed
QUIET = [
    "record.tensorboard=false",
    "baselines=false",
    "checkpoint.resume=never",
    "checkpoint.overwrite=true",
    "run.name=run",
]


@dataclass(frozen=True)
class Shape:
    """A recipe, its columns, and its DLRM in FuxiCTR's words."""

    recipe: str
    num_dense: int
    sizes: tuple[int, ...]
    settings: dict[str, Any]


def _dlrm(layers: list[int], **settings: Any) -> dict[str, Any]:
    return {"top_mlp_units": layers, "batch_norm": True, "embedding_dim": 10, **settings}


SHAPES = {
    "criteo_x1": Shape(
        "bars_criteo_x1",
        13,
        tuple(2_086_303 // 26 + (i < 2_086_303 % 26) for i in range(26)),
        _dlrm(
            [400] * 3, bottom_mlp_units=[400] * 3, interaction_op="dot", top_mlp_dropout=0.2, embedding_regularizer=1e-5
        ),
    ),
    "frappe_x1": Shape(
        "bars_frappe_x1",
        0,
        (958, 4083, 8, 8, 3, 4, 3, 10, 81, 234),
        _dlrm([400] * 3, interaction_op="cat", top_mlp_dropout=0.4, embedding_regularizer=0.1),
    ),
}


def main() -> None:
    """Measure and print; with --peer, be FuxiCTR."""
    arguments = parse_arguments()
    if arguments.peer:
        print("\n" + json.dumps(PEERS[arguments.what](arguments)))
        return
    with tempfile.TemporaryDirectory() as directory:
        results = MEASURES[arguments.what](arguments, Path(directory))
    from benchmarks.result_file import write_result  # the peer's interpreter has not what it needs

    write_result(arguments, results)


def parse_arguments() -> argparse.Namespace:
    """The command line's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=MEASURES)
    parser.add_argument("--fuxictr", type=Path, help="a clone of reczoo/FuxiCTR; without it ours alone is measured")
    parser.add_argument("--peer-python", type=Path, default=Path(sys.executable))
    parser.add_argument("--frappe", type=Path)
    parser.add_argument("--rows", type=int, default=60_000, help="drawn rows of curves, where --frappe is not given")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)  # a dataset's directory
    arguments = parser.parse_args()
    for key in ("fuxictr", "peer_python"):  # of a process with another working directory; not resolved: a venv's link
        if (path := getattr(arguments, key)) is not None:
            setattr(arguments, key, path.absolute())
    return arguments


def curves(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """AUCs of both programs by seed, and the interval of their differences."""
    from benchmarks.precision import interval
    from benchmarks.quality import write_splits

    write_splits(arguments, work)
    results: dict[str, Any] = {"clickwork": [], "fuxictr": []}
    for seed in arguments.seeds:
        results["clickwork"].append(our_curve(work, seed, arguments.threads))
        if arguments.fuxictr:
            results["fuxictr"].append(peer(arguments, work / "shards", "frappe_x1", seed))
        print(f"seed {seed}", *(f"{name} {runs[-1]['test']:.5f}" for name, runs in results.items() if runs), flush=True)
    if not arguments.fuxictr:
        return results
    pairs = zip(results["clickwork"], results["fuxictr"], strict=True)
    mean, half = interval([clickwork["test"] - fuxictr["test"] for clickwork, fuxictr in pairs])
    results["difference"] = {"mean": mean, "interval": half}
    print(f"test AUC, Clickwork's less FuxiCTR's: {mean:.5f} ± {half:.5f}")
    return results


def our_curve(work: Path, seed: int, threads: int) -> dict[str, Any]:
    """AUC by epoch on val, and of the best on test."""
    files = ["data.train=train.csv", "data.val=valid.csv", "data.test=test.csv", "data.path=shards"]
    settings = [f"train.seed={seed}", f"runtime.num_threads={threads}", *QUIET]
    execute([sys.executable, "-m", "app.train", "recipe=bars_frappe_x1", *files, *settings], work)
    lines = [json.loads(line) for line in (work / "runs/run/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    best = json.loads(execute([sys.executable, "-m", "app.evaluate", "run=runs/run", "split=test"], work))
    return {"val": [line["auc"] for line in lines if line["event"] == "eval"], "test": best["auc"]}


def speed(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Milliseconds of a step of both programs in each round, and the median of their ratios."""
    results: dict[str, Any] = {}
    for name in arguments.shapes:
        write_rows(work / name, SHAPES[name], BATCH * (arguments.steps + WARM_UP))
        milliseconds: dict[str, list[float]] = {"clickwork": [], "fuxictr": []}
        for number in range(arguments.rounds):
            milliseconds["clickwork"].append(our_step(work, name, arguments))
            if arguments.fuxictr:
                milliseconds["fuxictr"].append(peer(arguments, work / name, name, number)["ms"])
            print(
                name, *(f"{program} {times[-1]:.1f} ms" for program, times in milliseconds.items() if times), flush=True
            )
        results[name] = milliseconds
        if arguments.fuxictr:
            ratios = [fuxictr / clickwork for clickwork, fuxictr in zip(*milliseconds.values(), strict=True)]
            results[name] = {**milliseconds, "ratio": statistics.median(ratios)}
            print(f"{name}: {results[name]['ratio']:.2f} times ({min(ratios):.2f} to {max(ratios):.2f})")
    return results


def our_step(work: Path, name: str, arguments: argparse.Namespace) -> float:
    """The median step of `python -m app.train`, in milliseconds."""
    no_files = [
        *(f"data.{key}=null" for key in ("train", "val", "test", "schema", "dense_transform")),
        f"data.path={work / name}",
    ]
    bounds = [
        f"train.max_steps={arguments.steps + WARM_UP}",
        "train.eval_every_fraction=null",
        "train.epochs=1",
        "train.early_stop_patience=null",
        "schedule=constant",
        "train.log_every_steps=5",
    ]
    recipe = [f"recipe={SHAPES[name].recipe}", f"runtime.num_threads={arguments.threads}"]
    execute([sys.executable, "-m", "app.train", *recipe, *no_files, *bounds, *QUIET], work)
    return float(json.loads((work / "runs/run/summary.json").read_text(encoding="utf-8"))["throughput"]["step_ms_p50"])


def write_rows(root: Path, shape: Shape, rows: int) -> None:
    """A dataset of drawn rows with long-tailed ids: size · u⁴ for u uniform in [0, 1)."""
    from data_prep.dataset.format import Manifest, ShardArrays, Split, save_manifest, write_shard

    draw = np.random.default_rng(0)
    splits = {}
    for split, count in (("train", rows), ("val", BATCH), ("test", BATCH)):
        ids = (draw.random((count, len(shape.sizes))) ** 4 * np.array(shape.sizes)).astype(np.int32)
        labels = draw.integers(0, 2, (count, 1)).astype(np.int32)
        dense = draw.normal(size=(count, shape.num_dense)).astype(np.float32)
        shard = write_shard(root, split, "00000", ShardArrays(labels, dense, ids))
        splits[split] = Split(rows=count, label_rate=float(labels.mean()), shards=[shard])
    names = [f"C{i}" for i in range(len(shape.sizes))]
    schema = {"label": "label", "dense": [f"I{i}" for i in range(shape.num_dense)], "sparse": names}
    total = sum(split.rows for split in splits.values())
    manifest_fields: dict[str, Any] = {
        "encoding": {"name": "drawn"},
        "sources": [],
        "tool_version": "benchmark",
        "label_rate": 0.5,
    }
    sizes = dict(zip(names, shape.sizes, strict=True))
    save_manifest(root, Manifest(schema=schema, splits=splits, rows=total, num_embeddings=sizes, **manifest_fields))


def peer(arguments: argparse.Namespace, shards: Path, shape: str, seed: int) -> Any:
    """What FuxiCTR measures, in a process of its own."""
    command = [str(arguments.peer_python), "-m", "benchmarks.fuxictr", arguments.what, "--peer", str(shards.resolve())]
    for key in ("fuxictr", "steps", "threads"):
        command += [f"--{key}", str(getattr(arguments, key))]
    output = execute([*command, "--shapes", shape, "--seeds", str(seed)], REPOSITORY)
    return json.loads(output.rsplit("\n", 2)[1])


def execute(command: list[str], directory: Path) -> str:
    """What a command prints; it must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.run(command, cwd=directory, capture_output=True, text=True, env=environment, check=False)
    if process.returncode:
        raise SystemExit(process.stderr)
    return process.stdout


class Batches:
    """Batches of a split as FuxiCTR's `fit` takes them, in another order each time; with the last, shorter one."""

    def __init__(self, root: Path, split: str, shuffled: bool) -> None:
        arrays = {kind: sorted((root / split).glob(f"*.{kind}.npy")) for kind in ("labels", "dense", "sparse")}
        labels, dense, sparse = (
            torch.from_numpy(np.concatenate([np.load(path) for path in paths])) for paths in arrays.values()
        )
        self.rows = {f"I{i}": column for i, column in enumerate(dense.unbind(1))}
        self.rows |= {f"C{i}": column.long() for i, column in enumerate(sparse.unbind(1))}
        self.labels, self.shuffled = labels[:, 0].float(), shuffled

    def __len__(self) -> int:
        return math.ceil(len(self.labels) / BATCH)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        count = len(self.labels)
        order = torch.randperm(count) if self.shuffled else torch.arange(count)
        for part in order.split(BATCH):
            columns = {name: column[part] for name, column in self.rows.items()}
            columns |= {name: column[:, None] for name, column in columns.items() if name.startswith("I")}
            yield {**columns, "label": self.labels[part]}


def peer_model(arguments: argparse.Namespace, work: str) -> Any:
    """FuxiCTR's DLRM of the shape."""
    from tests.golden.record_fuxictr import import_model

    (name,), (seed,) = arguments.shapes, arguments.seeds
    shape, make = SHAPES[name], import_model(arguments.fuxictr, "DLRM")
    from fuxictr.features import FeatureMap  # of the clone, which is on the path now

    torch.manual_seed(seed)
    torch.set_num_threads(arguments.threads)
    sizes = json.loads((arguments.peer / "manifest.json").read_text(encoding="utf-8"))["num_embeddings"].values()
    numeric = {f"I{i}": {"source": "", "type": "numeric"} for i in range(shape.num_dense)}
    categorical = {
        f"C{i}": {"source": "", "type": "categorical", "vocab_size": size, "padding_idx": None}
        for i, size in enumerate(sizes)
    }
    features = FeatureMap("benchmark", work)
    features.features, features.labels = OrderedDict({**numeric, **categorical}), ["label"]
    features.num_fields, features.default_emb_dim = len(features.features), 10
    features.set_column_index()
    options = {"optimizer": "adam", "loss": "binary_crossentropy", "metrics": ["AUC"], "monitor": "AUC"}
    return make(features, gpu=-1, learning_rate=1e-3, verbose=0, model_root=work, **options, **shape.settings)


def peer_curve(arguments: argparse.Namespace) -> dict[str, Any]:
    """AUC by epoch on val, and of the best on test, under FuxiCTR's `fit`."""
    with tempfile.TemporaryDirectory() as work:
        model = peer_model(arguments, work)
        os.makedirs(model.model_dir, exist_ok=True)
        aucs: list[float] = []
        evaluate = model.evaluate

        def recorded(*inputs: Any, **options: Any) -> Any:
            logs = evaluate(*inputs, **options)
            aucs.append(logs["AUC"])
            return logs

        model.evaluate = recorded
        train, val, test = (Batches(arguments.peer, split, split == "train") for split in ("train", "val", "test"))
        model.fit(train, epochs=100, validation_data=val, max_gradient_norm=10.0)
        return {"val": list(aucs), "test": evaluate(test)["AUC"]}


def peer_step(arguments: argparse.Namespace) -> dict[str, float]:
    """The median of FuxiCTR's `train_step`, in milliseconds, over batches in memory."""
    with tempfile.TemporaryDirectory() as work:
        model = peer_model(arguments, work)
        model._max_gradient_norm = 10.0
        model.train()
        batches = list(Batches(arguments.peer, "train", shuffled=True))
        seconds = []
        for batch in batches[: arguments.steps + WARM_UP]:
            start = time.perf_counter()
            model.train_step(batch)
            seconds.append(time.perf_counter() - start)
    return {"ms": 1e3 * statistics.median(seconds[WARM_UP:])}


MEASURES = {"curves": curves, "speed": speed}
PEERS = {"curves": peer_curve, "speed": peer_step}

if __name__ == "__main__":
    main()
