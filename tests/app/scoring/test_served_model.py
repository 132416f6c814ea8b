"""Tables in other precisions against row-wise quantization in NumPy."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import log_loss, roc_auc_score
from torchrec import KeyedJaggedTensor

from app import scoring
from app.checkpoint import files
from app.config.app_config import AppConfig
from app.config.commands import BITS, TablePrecision
from app.config.model import ModelConfig, Pooling, QROperation, Storage, TableKind, TablesConfig
from app.config.train import RuntimeConfig
from app.data.split import SplitReader
from app.model.dlrm import DLRM
from app.scoring import packed_rows
from app.training import checkpointer
from data_prep.dataset.format import Manifest, load_manifest
from tests.app.conftest import Command
from tests.app.datasets import RAGGED, RAGGED_EMBEDDINGS, write_ragged_dataset
from tests.error_lines import refused

CPU = torch.device("cpu")
PACKED = [TablePrecision.fp16, TablePrecision.int8, TablePrecision.int4]


def rounded(weight: NDArray[np.float32], precision: TablePrecision) -> NDArray[np.float32]:
    """A table's values as they come back from a precision: the oracle."""
    if precision is TablePrecision.fp32:
        return weight
    if precision is TablePrecision.fp16:
        return weight.astype(np.float16).astype(np.float32)
    if precision is TablePrecision.bf16:  # round to nearest even at the 16th bit
        bits = weight.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    most = {TablePrecision.int8: 255, TablePrecision.int4: 15}[precision]
    low, high = weight.min(axis=1, keepdims=True), weight.max(axis=1, keepdims=True)
    bias = low.astype(np.float16).astype(np.float32)
    scale = ((high - bias) / np.float32(most)).astype(np.float16).astype(np.float32)
    scale[scale == 0] = 1
    steps = np.clip(np.rint((weight - bias) * (np.float32(1) / scale)), 0, most).astype(np.float32)
    return steps * scale + bias


@pytest.fixture(scope="module")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return write_ragged_dataset(tmp_path_factory.mktemp("ragged"), {"train": 10})


def random_model(manifest: Manifest, tables: TablesConfig) -> DLRM:
    """A model of random weights, the same ones every time; some rows constant, some of large values."""
    config = AppConfig(model=ModelConfig(embedding_dim=8, dense_arch=[8], over_arch=[8, 1], tables=tables))
    torch.manual_seed(0)
    model = scoring.make_whole_model(config, manifest)
    for name, parameter in model.named_parameters():
        if "sparse_arch" in name:
            torch.nn.init.normal_(parameter.data)
            parameter.data[0] = 0.25
            parameter.data[1] *= 100
    return model


def random_samples(samples: int) -> tuple[torch.Tensor, KeyedJaggedTensor]:
    """Two dense features of each sample, and a bag of one to three ids of each ragged feature, of others one id."""
    draw = np.random.default_rng(samples)
    lengths = [draw.integers(1, 4 if name in RAGGED else 2, samples) for name in RAGGED_EMBEDDINGS]
    ids = [draw.integers(0, rows, each.sum()) for rows, each in zip(RAGGED_EMBEDDINGS.values(), lengths, strict=True)]
    values, counts = (torch.from_numpy(np.concatenate(parts)).int() for parts in (ids, lengths))
    dense = torch.from_numpy(draw.standard_normal((samples, 2), np.float32))
    return dense, KeyedJaggedTensor(list(RAGGED_EMBEDDINGS), values, lengths=counts)


@pytest.mark.parametrize("precision", list(TablePrecision))
@pytest.mark.parametrize(
    "tables",
    [
        TablesConfig(),
        TablesConfig(pooling=Pooling.mean, kind=TableKind.mixed_dimension, min_rows=5, storage=Storage.fp16),
        TablesConfig(kind=TableKind.qr, min_rows=5, overrides={"tags": {"pooling": "mean"}}),
        TablesConfig(kind=TableKind.qr, min_rows=5, qr_operation=QROperation.concat, shared={"both": ["user", "item"]}),
        TablesConfig(pooling=Pooling.weighted),
    ],
    ids=["plain", "mixed", "qr", "concat", "weighted"],
)
def test_logits_are_those_of_rounded_tables(ragged: Manifest, precision: TablePrecision, tables: TablesConfig) -> None:
    dense, bags = random_samples(9)
    truth = random_model(ragged, tables)
    for name, parameter in truth.named_parameters():
        if ".bags." in name or ".rows." in name:
            parameter.data = torch.from_numpy(rounded(parameter.data.float().numpy(), precision))
    served = scoring.convert_tables(random_model(ragged, tables), precision, CPU)
    with torch.no_grad():
        expected, logits = truth(dense, bags), served(dense, bags)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize(
    ("precision", "values"),
    [
        (TablePrecision.fp16, [65_520.0, 0.0]),
        (TablePrecision.int8, [-65_520.0, 0.0]),
        (TablePrecision.int8, [0.0, 255 * 65_520.0]),
        (TablePrecision.int4, [0.0, 15 * 65_520.0]),
    ],
)
def test_values_beyond_fp16_are_refused(precision: TablePrecision, values: list[float]) -> None:
    """65,519 is the last that is rounded to fp16's largest number, 65,504."""
    weight = torch.tensor([[1.0, 2.0, 3.0, 4.0], [*values, 0.0, 0.0]])
    refused(f"tables={precision.value}: a table has values up to .* use tables=fp32", packed_rows, weight, precision)
    packed_rows(weight * (65_519 / 65_520), precision)


@pytest.mark.parametrize("precision", PACKED)
def test_packed_rows_have_the_bytes_that_are_counted(precision: TablePrecision) -> None:
    values, scales = packed_rows(torch.randn(5, 12), precision)
    assert values.shape[1] + (0 if scales is None else scales.shape[1]) == 12 * BITS[precision] // 8 + 4 * (
        precision in (TablePrecision.int8, TablePrecision.int4)
    )


@pytest.mark.slow("processes")
def test_evaluation_is_that_of_the_rounded_tables(uninterrupted: Path, run_app: Command) -> None:
    for tables, processes in (("int4", 2), ("bf16", 1)):
        overrides = (f"run={uninterrupted}", f"tables={tables}", "runtime.platform=cpu")
        process = run_app("evaluate", *overrides, processes=processes)
        figures = json.loads(process.stdout)
        logits, labels = scored(uninterrupted, TablePrecision[tables])
        assert figures["tables"] == tables
        assert figures["samples"] == len(labels)
        probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
        assert figures["logloss"] == pytest.approx(log_loss(labels, probabilities), rel=1e-5)
        assert figures["auc"] == pytest.approx(roc_auc_score(labels, logits), abs=1e-4)


def scored(run: Path, precision: TablePrecision) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Logits and labels of the run's test split by torch's own lookup in tables that the oracle rounded."""
    trained = checkpointer.trained_config(run, RuntimeConfig(), None)
    root = Path(trained.data.path or "")
    manifest = load_manifest(root)
    checkpoint = Path(files.find_checkpoint(run, None))
    model = scoring.load(checkpoint, trained, manifest, TablePrecision.fp32, CPU)
    for name, parameter in model.named_parameters():
        if ".bags." in name:
            parameter.data = torch.from_numpy(rounded(parameter.data.numpy(), precision))
    split = SplitReader(root, manifest, "test", trained.data, 0, 1)
    (batch,) = split.eval_batches(split.rows)
    return model(batch.dense_features, batch.sparse_features).numpy(), batch.labels.numpy()
