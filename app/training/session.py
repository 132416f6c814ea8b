"""Composition: what training and evaluation both need, built from a configuration on this process."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer

from app.config import AppConfig, Precision
from app.data.batch import Batch
from app.data.split import Split
from app.metrics import clicks
from app.model.dlrm import DLRM
from app.model.embeddings import make_sparse_arch
from app.model.tables import initial_rows, table_of
from app.optimizer.build import fused_params, make_optimizer
from app.record import provenance
from app.runtime.platform import Runtime
from app.sharding import from_config
from app.sharding.execute import distribute, fill_tables, table_blocks, table_weights
from app.sharding.plan import Plan
from app.training import loop
from common.errors import UserError
from data_prep.dataset.format import Manifest

log = logging.getLogger("clickwork")

MOST_SOURCES = 30  # names of raw files told


class Predictions(NamedTuple):
    """[n] float32 each; labels are 0 or 1."""

    logits: NDArray[np.float32]
    labels: NDArray[np.float32]


@dataclass
class Session:
    """One process's part of a run."""

    config: AppConfig
    runtime: Runtime
    root: Path  # of the dataset
    manifest: Manifest
    plan: Plan
    model: DistributedModelParallel
    optimizer: CombinedOptimizer
    _splits: dict[str, Split] = field(default_factory=dict)

    def split(self, name: str) -> Split:
        """A split of the dataset, opened once for this process."""
        if name not in self._splits:
            rank, world_size = self.runtime.rank, self.runtime.world_size
            self._splits[name] = Split(self.root, self.manifest, name, self.config.data, rank, world_size)
        return self._splits[name]

    def on_device(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Batches moved to this process's device."""
        return on_device(batches, self.runtime.device)

    def forward(self, batch: Batch) -> Tensor:
        """Logits [B] float32, the dense layers in the configured precision."""
        return forward(self.model, batch, self.config.runtime.precision)

    def predict(self, name: str, interrupted: Callable[[int], bool] = lambda batches_done: False) -> Predictions:
        """Logits and labels of a whole split, all processes' samples pooled; a collective call.

        Raises:
            Stopped: `interrupted` said so (on all processes alike).
        """
        self.model.eval()
        try:
            return predict(self.config, self.runtime, self.split(name), self.forward, interrupted)
        finally:
            self.model.train()

    def measure(self, name: str, predictions: Predictions) -> dict[str, float | int | str | None]:
        """Metrics of what `predict` gave."""
        return measure(name, predictions)

    def evaluate(self, name: str) -> dict[str, float | int | str | None]:
        """Metrics over a whole split, all processes' samples pooled; a collective call."""
        return self.measure(name, self.predict(name))

    def describe_dataset(self) -> dict[str, Any]:
        """What a run's manifest says of its dataset; `bayes` are the figures of a planted truth, if it has one."""
        manifest = self.manifest
        return {
            "path": str(self.root),
            "digest": manifest.digest,
            "rows": {name: split.rows for name, split in manifest.splits.items()},
            "label_rate": manifest.label_rate,
            "encoding": manifest.encoding.get("name"),
            "sources": [source.get("name") for source in manifest.sources[:MOST_SOURCES]],
            "bayes": manifest.extra.get("bayes"),
        }

    def describe_tables(self) -> dict[str, dict[str, Any]]:
        """Size of each table, whole, and how much is looked up in it; bytes are of its weights alone."""
        bag_sizes, arch = from_config.bag_sizes_of(self.config, self.manifest), self.model.module.sparse_arch
        features = {table.name: [arch.feature_of[key] for key in table.keys] for table in arch.tables}
        return {
            name: {
                "features": len(features[name]),
                "ids_per_sample": sum(bag_sizes[feature] for feature in features[name]),
                "num_embeddings": weight.size(0),
                "embedding_dim": weight.size(1),
                "bytes": weight.size(0) * weight.size(1) * weight.dtype.itemsize,
            }
            for name, weight in table_weights(self.model)
        }

    def parameter_counts(self) -> dict[str, int]:
        """Numbers of embedding and dense parameters of the whole model."""
        embedding = sum(table.num_embeddings * table.embedding_dim for table in self.model.module.sparse_arch.tables)
        dense = sum(parameter.numel() for parameter in self.dense_parameters().values())
        return {"embedding": embedding, "dense": dense, "total": embedding + dense}

    def dense_parameters(self) -> dict[str, nn.Parameter]:
        """All parameters but tables, by name and in its order."""
        named = sorted(self.model.named_parameters(), key=lambda item: item[0])
        return {name: parameter for name, parameter in named if not table_of(name)}

    def parameters(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Tables in order, large ones in blocks of rows, then dense parameters by name.

        A collective call: every process must exhaust the iterator; only rank 0's yields.
        """
        for name, weight in table_weights(self.model):
            for block in table_blocks(weight):
                yield name, block.numpy()
        for name, parameter in self.dense_parameters().items():
            if self.runtime.rank == 0:
                yield name, parameter.detach().cpu().numpy()

    def parameters_digest(self) -> str:
        """SHA-256 over the bytes of all parameters; a collective call, valid on rank 0."""
        return provenance.parameters_digest(values for _, values in self.parameters())


def build(config: AppConfig, runtime: Runtime, root: Path, manifest: Manifest) -> Session:
    """Declare, shard and initialise the model and its optimizer; a collective call.

    Raises:
        UserError: the dataset does not fit the configuration.
    """
    if not manifest.num_embeddings:
        raise UserError(f"{root}: DLRM needs at least one sparse feature")
    torch.manual_seed(config.train.seed)  # dense layers draw from it, in the order of their declaration
    sparse_arch = make_sparse_arch(config.model, manifest.num_embeddings, runtime.device,
                                              from_config.multi_hot_features(config, manifest))  # fmt: skip
    plan = from_config.plan_for(config, runtime, sparse_arch, from_config.bag_sizes_of(config, manifest))
    model = distribute(
        DLRM(config.model, len(manifest.schema["dense"]), len(manifest.num_embeddings), sparse_arch),
        plan,
        fused_params(config.optimizer),
        config.sharding.qcomm,
        runtime.device,
    )
    tables = {table.name: table for table in sparse_arch.tables}

    fill_tables(model, lambda table, start, stop: initial_rows(config.train.seed, tables[table], start, stop))
    return Session(config, runtime, root, manifest, plan, model, make_optimizer(model, config.optimizer))


def on_device(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Batches moved to a device."""
    return batches if device.type == "cpu" else (batch.to(device, True) for batch in batches)


def forward(model: nn.Module, batch: Batch, precision: Precision | None) -> Tensor:
    """A model's logits [B] float32 of a batch on its device, the dense layers in `precision`."""
    bf16 = precision is Precision.bf16
    with torch.autocast(batch.dense_features.device.type, dtype=torch.bfloat16, enabled=bf16):
        logits: Tensor = model(batch.dense_features, batch.sparse_features)
        return logits


def predict(
    config: AppConfig,
    runtime: Runtime,
    split: Split,
    score: Callable[[Batch], Tensor],
    interrupted: Callable[[int], bool] = lambda batches_done: False,
) -> Predictions:
    """Logits by `score` and labels of a whole split, all processes' samples pooled; a collective call.

    Raises:
        Stopped: `interrupted` said so (on all processes alike).
    """
    wanted = min(config.eval.global_batch_size, split.rows)
    batch_size = max(1, -(-wanted // runtime.world_size)) * runtime.world_size
    batches = on_device(split.eval_batches(batch_size), runtime.device)
    logits, labels = loop.predict(batches, score, interrupted)
    return Predictions(*_pool(runtime, np.stack([logits.numpy(), labels.numpy()])))


def measure(name: str, predictions: Predictions) -> dict[str, float | int | str | None]:
    """Metrics of what `predict` gave of the split of that name."""
    return {"split": name, "samples": len(predictions.labels), **clicks.click_metrics(*predictions)}


def mean_over_ranks(runtime: Runtime, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mean over processes of arrays of one shape, summed in order of rank: it does not depend on the network."""
    total = np.zeros(values.shape, np.float64)
    for theirs in runtime.gather(values):
        total += theirs
    return (total / runtime.world_size).astype(np.float32)


def _pool(runtime: Runtime, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Join every process's [2, n] along n; n differs between processes, so the shorter are padded to travel."""
    counts = [int(count[0]) for count in runtime.gather(np.array([values.shape[1]]))]
    padded = np.pad(values, ((0, 0), (0, max(counts) - values.shape[1])))
    everyones = runtime.gather(padded)
    return np.concatenate([theirs[:, :count] for theirs, count in zip(everyones, counts, strict=True)], axis=1)
