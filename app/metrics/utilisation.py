"""Utilisation: what a run's steps computed and moved, compared with this machine's measured limits."""

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from app.config import ModelConfig, OptimizerConfig, Precision
from app.metrics.ceilings import measure_ceilings
from app.metrics.documents import MIN_TRAIN_SECONDS
from app.model.flops import training_flops
from app.model.tables import REMAINDER, VALUE_BYTES, TableSpec
from app.runtime.platform import Runtime
from data_prep.dataset.format import Manifest

log = logging.getLogger("clickwork")

CEILING_SECONDS = 0.2
STATE_BYTES = 4


class SampleWork(NamedTuple):
    """Work of training per sample.

    flops: None if they depend on the sample. table_bytes: as if no cache served them; they are rows read in the
    forward, and rows and optimizer state read and written in the backward.
    """

    flops: float | None
    table_bytes: float


def work_of_sample(
    model: ModelConfig,
    optimizer: OptimizerConfig,
    manifest: Manifest,
    tables: Sequence[TableSpec],
    bag_sizes: Mapping[str, float],
) -> SampleWork:
    """Return the work of a model with these tables on a dataset's mean sample; `bag_sizes`: mean ids per bag."""
    flops = None
    if model.parts is None:
        flops = training_flops(model, len(manifest.schema["dense"]), len(manifest.num_embeddings))
    return SampleWork(flops, _table_bytes(optimizer, tables, bag_sizes))


def utilisation(
    precision: Precision | None,
    runtime: Runtime,
    work: SampleWork,
    samples_per_second_per_device: float | None,
    train_seconds: float,
) -> dict[str, float | None]:
    """Return FLOPs and bytes per sample and per second, and their shares of ceilings measured here and now.

    Ceilings, and so shares, are None for a run that trained for less than 20 seconds, or if its GPUs have too little
    memory left to measure them.
    """
    flops, moved = work
    figures: dict[str, float | None] = {
        "flops_per_sample": flops,
        "table_bytes_per_sample": moved,
        "flops_per_second": None,
        "table_bytes_per_second": None,
        "matrix_flops_per_second": None,
        "memory_bytes_per_second": None,
        "model_flops_utilisation": None,
        "memory_bandwidth_utilisation": None,
    }
    rate = samples_per_second_per_device
    if rate is None:
        return figures
    figures |= {"flops_per_second": flops and rate * flops, "table_bytes_per_second": rate * moved}
    if runtime.highest(train_seconds) >= MIN_TRAIN_SECONDS:
        dtype = torch.bfloat16 if precision is Precision.bf16 else torch.float32
        ceilings = measure_ceilings(runtime.device, dtype, CEILING_SECONDS, runtime.highest)
        if ceilings is None:
            log.info("utilisation: not measured (the GPUs have too little memory left)")
            return figures
        figures |= {
            "matrix_flops_per_second": ceilings.flops_per_second,
            "memory_bytes_per_second": ceilings.bytes_per_second,
            "model_flops_utilisation": flops and rate * flops / ceilings.flops_per_second,
            "memory_bandwidth_utilisation": rate * moved / ceilings.bytes_per_second,
        }
    return figures


def _table_bytes(optimizer: OptimizerConfig, tables: Sequence[TableSpec], bags: Mapping[str, float]) -> float:
    """Return the bytes of one sample's lookups and updates; `bags`: mean ids per bag of each feature."""
    algorithm = optimizer.name.algorithm
    total = 0.0
    for table in tables:
        ids = sum(bags.get(key.removesuffix(REMAINDER), 1.0) for key in table.keys)
        state = STATE_BYTES * algorithm.state_elements(table.embedding_dim)
        total += ids * (3 * VALUE_BYTES[table.storage] * table.embedding_dim + 2 * state)
    return total
