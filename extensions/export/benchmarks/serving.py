"""Latency and throughput of exported models on one core, beside other forms of the same architecture.

    python -m extensions.export.benchmarks.serving [--rows 100000] [--seconds 3] [--batches 1 1000] [--served DIR]
        [--peer-python PYTHON] [--out FILE.json]

DLRM of model=dlrm (13 dense features, 26 tables of --rows rows, D 16, dot), random weights, encoded inputs in memory:

  onnx_fp32, onnx_int8    model.onnx of out=DIR, in ONNX Runtime
  torchrec_int8           TorchRec's DLRM with quantize_embeddings, as TorchScript
  fuxictr                 the forward of FuxiCTR's model of these layers, as its `predict` calls it, by --peer-python
                          (benchmarks/peers/README.md), in a process of its own
  score.py                rows of --served, an exported directory, from raw values to probabilities; its own model

Calls alternate in rounds until each form had --seconds. p50 and p99 are of single calls; rows/s of all calls.
"""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.fx import symbolic_trace
from torchrec.inference.modules import quantize_embeddings
from torchrec.models import dlrm as torchrec_dlrm

from app.config import ModelConfig
from app.config.commands import TablePrecision
from app.model.dlrm import DLRM
from app.model.embeddings import make_sparse_arch
from benchmarks.peers.rows import DENSE_ARCH, DIM, NUM_DENSE, NUM_SPARSE, OVER_ARCH
from benchmarks.result_file import write_result
from extensions.export.benchmarks.timing import FEATURES, encoded, timed, use_one_core
from extensions.export.graph import ModelGraph

CPU = torch.device("cpu")
Model = Callable[[torch.Tensor, torch.Tensor], object]
PEER = """
import json, sys
from extensions.export.benchmarks import fuxictr_forward
fuxictr_forward.measure(*json.loads(sys.argv[1]))
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each form at each batch")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 1000])
    parser.add_argument("--served", type=Path, help="an exported directory; without one score.py is left out")
    parser.add_argument("--peer-python", type=Path, help="that has FuxiCTR; without one it is left out")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    use_one_core()
    torch.set_num_threads(1)
    results = measure(arguments)
    for name, result in results.items():
        print(name, json.dumps(result))
    write_result(arguments, results)


def measure(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """All figures by form and batch."""
    runs = {**exported_models(arguments.rows), "torchrec_int8": torchrec_script(arguments.rows)}
    results: dict[str, dict[str, Any]] = {}
    for batch in arguments.batches:
        dense, ids = encoded(arguments.rows, batch)
        forms: dict[str, Callable[[], object]] = {name: partial(run, dense, ids) for name, run in runs.items()}
        if arguments.served is not None:
            forms["score.py"] = raw_rows(arguments.served, batch)
        for name, figures in timed(forms, batch, arguments.seconds).items():
            results.setdefault(name, {})[str(batch)] = figures
    if arguments.peer_python is not None:
        results["fuxictr"] = fuxictr(arguments.peer_python, arguments.rows, arguments.seconds, arguments.batches)
    return results


def fuxictr(python: Path, rows: int, seconds: float, batches: list[int]) -> dict[str, Any]:
    """FuxiCTR's figures by batch, of a process of its own."""
    with tempfile.TemporaryDirectory() as work:
        command = [str(python), "-c", PEER, json.dumps([work, rows, seconds, batches])]
        process = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return figures


def exported_models(rows: int) -> dict[str, Model]:
    """model.onnx in both precisions."""
    config = ModelConfig(embedding_dim=DIM, dense_arch=[*DENSE_ARCH], over_arch=[*OVER_ARCH])
    num_embeddings = dict.fromkeys(FEATURES, rows)
    runs: dict[str, Model] = {}
    for precision in (TablePrecision.fp32, TablePrecision.int8):
        torch.manual_seed(0)
        arch = make_sparse_arch(config, num_embeddings, [])
        model = DLRM(config, NUM_DENSE, NUM_SPARSE, arch)
        for collection in arch.collections:
            collection.to_empty(device=CPU)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter.data, std=0.1)
        graph = ModelGraph(model.eval(), NUM_DENSE, num_embeddings, [], precision)
        runs[f"onnx_{precision.value}"] = _onnx(graph)
    return runs


def _onnx(graph: ModelGraph) -> Model:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.onnx"
        graph.save(path)
        session = onnxruntime.InferenceSession(str(path), options)
    return lambda dense, ids: session.run(["logits"], {"dense_features": dense.numpy(), "ids": ids.numpy()})


def _without_gradients(model: Callable[..., Any]) -> Model:
    def run(dense: torch.Tensor, ids: torch.Tensor) -> object:
        with torch.no_grad():
            return model(dense, ids)

    return run


class _ById(torch.nn.Module):
    """TorchRec's DLRM over ids [B, F]."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model, self.features = model, FEATURES

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        lengths = torch.ones(ids.numel(), dtype=torch.int32)
        bags = KeyedJaggedTensor(keys=self.features, values=ids.t().reshape(-1).int(), lengths=lengths)
        logits: torch.Tensor = self.model(dense, bags)
        return logits


def torchrec_script(rows: int) -> Model:
    """TorchRec's quantised inference on a CPU, as TorchScript."""
    configs = [
        EmbeddingBagConfig(name=f"t_{name}", embedding_dim=DIM, num_embeddings=rows, feature_names=[name])
        for name in FEATURES
    ]
    model = torchrec_dlrm.DLRM(EmbeddingBagCollection(tables=configs), NUM_DENSE, [*DENSE_ARCH], [*OVER_ARCH])
    quantised = quantize_embeddings(model.eval(), dtype=torch.qint8, inplace=True)
    return _without_gradients(torch.jit.script(symbolic_trace(_ById(quantised))))


def raw_rows(directory: Path, batch: int) -> Callable[[], object]:
    """score.py of an exported directory, on rows of its own columns: text as a file has it."""
    sys.path.insert(0, str(directory))
    scorer = importlib.import_module("score").Scorer(directory, threads=1)
    draw = np.random.default_rng(batch)
    rows = {name: [f"{value:x}" for value in draw.integers(0, 10, batch)] for name in scorer.columns}
    return lambda: scorer.score(rows)


if __name__ == "__main__":
    main()
