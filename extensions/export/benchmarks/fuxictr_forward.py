"""The forward of FuxiCTR's model of the layers of serving.py, by an interpreter that has FuxiCTR."""

import json
from collections import OrderedDict
from pathlib import Path

import torch
from fuxictr.features import FeatureMap

from benchmarks.peers.curve import Task
from benchmarks.peers.fuxictr_dlrm import FuxiDLRM
from benchmarks.peers.rows import DIM, NUM_DENSE
from extensions.export.benchmarks import timing


def measure(work: str, rows: int, seconds: float, batches: list[int]) -> None:
    """Print the figures by batch as JSON."""
    torch.set_num_threads(1)
    timing.use_one_core()
    dense = {f"int_{i}": {"source": "", "type": "numeric"} for i in range(NUM_DENSE)}
    entry = {"source": "", "type": "categorical", "vocab_size": rows, "padding_idx": None}
    feature_map = FeatureMap("benchmark", work)
    feature_map.features = OrderedDict({**dense, **{name: dict(entry) for name in timing.FEATURES}})
    feature_map.labels = ["label"]
    feature_map.num_fields, feature_map.default_emb_dim = len(feature_map.features), DIM
    feature_map.set_column_index()
    task = Task(Path(work), batch=1, evaluations=1, rate=0.1, seed=0, threads=1)
    model = FuxiDLRM(feature_map, task).eval()
    results = {}
    for batch in batches:
        numbers, ids = timing.encoded(rows, batch)
        inputs = dict(zip(dense, numbers.T, strict=True)) | dict(zip(timing.FEATURES, ids.T, strict=True))

        def predict(inputs: dict[str, torch.Tensor] = inputs) -> object:
            with torch.no_grad():
                return model(inputs)["y_pred"].numpy()

        results[str(batch)] = timing.timed({"fuxictr": predict}, batch, seconds)["fuxictr"]
    print(json.dumps(results))
