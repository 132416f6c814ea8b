"""Latency and throughput of an exported directory on one core.

    python -m benchmarks.serving [--rows 100000] [--seconds 3] [--batches 1 1000] [--served DIR]
        [--out FILE.json]

DLRM of model=dlrm (13 dense features, 26 tables of --rows rows, D 16, dot), random weights, encoded inputs in memory:

  onnx_fp32, onnx_int8    model.onnx of out=DIR, in ONNX Runtime
  score.py                rows of --served, an exported directory, from raw values to probabilities; its own model

Calls alternate until each form had --seconds. p50 and p99 are of single calls; rows/s of all calls.
"""

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from app.config.model import ModelConfig
from app.model.dlrm import DLRM
from app.model.embeddings import make_sparse_arch
from benchmarks.peers.rows import DENSE_ARCH, DIM, NUM_DENSE, NUM_SPARSE, OVER_ARCH
from benchmarks.result_file import write_result
from extensions.export.directory import ServedModel

CPU = torch.device("cpu")
Model = Callable[[torch.Tensor, torch.Tensor], object]
FEATURES = [f"cat_{number}" for number in range(NUM_SPARSE)]
WARM_UP = 5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each form at each batch")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 1000])
    parser.add_argument("--served", type=Path, help="an exported directory; without one score.py is left out")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    results = measure(arguments)
    for name, result in results.items():
        print(name, json.dumps(result))
    write_result(arguments, results)


def measure(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return all figures by form and batch."""
    runs = exported_models(arguments.rows)
    results: dict[str, dict[str, Any]] = {}
    for batch in arguments.batches:
        dense, ids = random_inputs(arguments.rows, batch)
        forms: dict[str, Callable[[], object]] = {name: partial(run, dense, ids) for name, run in runs.items()}
        if arguments.served is not None:
            forms["score.py"] = score_raw_rows(arguments.served, batch)
        for name, figures in time_calls(forms, batch, arguments.seconds).items():
            results.setdefault(name, {})[str(batch)] = figures
    return results


def exported_models(rows: int) -> dict[str, Model]:
    """Return a random model with tables of `rows` rows as model.onnx, in fp32 and int8, by name."""
    config = ModelConfig(embedding_dim=DIM, dense_arch=[*DENSE_ARCH], over_arch=[*OVER_ARCH])
    num_embeddings = dict.fromkeys(FEATURES, rows)
    runs: dict[str, Model] = {}
    for precision in ("fp32", "int8"):
        torch.manual_seed(0)
        arch = make_sparse_arch(config, num_embeddings, [])
        model = DLRM(config, NUM_DENSE, NUM_SPARSE, arch)
        for collection in arch.collections:
            collection.to_empty(device=CPU)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter.data, std=0.1)
        graph = ServedModel(model.eval(), NUM_DENSE, num_embeddings, [], precision)
        runs[f"onnx_{precision}"] = _onnx_model(graph)
    return runs


def _onnx_model(graph: ServedModel) -> Model:
    """Return ONNX Runtime's function of dense features and ids, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.onnx"
        graph.save(path)
        session = onnxruntime.InferenceSession(str(path), options)
    return lambda dense, ids: session.run(["logits"], {"dense_features": dense.numpy(), "ids": ids.numpy()})


def score_raw_rows(directory: Path, batch: int) -> Callable[[], object]:
    """Return a call of score.py of an exported directory, on rows of its own columns: text as a file has it."""
    sys.path.insert(0, str(directory))
    scorer = importlib.import_module("score").Scorer(directory, threads=1)
    draw = np.random.default_rng(batch)
    rows = {name: [f"{value:x}" for value in draw.integers(0, 10, batch)] for name in scorer.columns}
    return lambda: scorer.score(rows)


def random_inputs(rows: int, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw dense features [B, N] and ids [B, F] int64."""
    draw = torch.Generator().manual_seed(batch)
    return torch.rand(batch, NUM_DENSE, generator=draw), torch.randint(rows, (batch, NUM_SPARSE), generator=draw)


def time_calls(forms: Mapping[str, Callable[[], object]], batch: int, seconds: float) -> dict[str, dict[str, float]]:
    """Return milliseconds of a call, and rows a second, by form; calls alternate until each form had its seconds."""
    calls: dict[str, list[float]] = {name: [] for name in forms}
    for form in forms.values():
        for _ in range(WARM_UP):
            form()
    while min(sum(durations) for durations in calls.values()) < seconds:
        for name, form in forms.items():
            begin = time.perf_counter()
            form()
            calls[name].append(time.perf_counter() - begin)
    return {
        name: {
            "p50_ms": round(float(np.percentile(durations, 50)) * 1e3, 3),
            "p99_ms": round(float(np.percentile(durations, 99)) * 1e3, 3),
            "rows_per_s": round(batch * len(durations) / sum(durations)),
            "calls": len(durations),
        }
        for name, durations in calls.items()
    }


if __name__ == "__main__":
    main()
