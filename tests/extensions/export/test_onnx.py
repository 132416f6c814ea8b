"""model.onnx against the model itself: interactions, tables, precisions, large tables."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnxruntime import InferenceSession

from app.config.app_config import AppConfig
from app.config.model import Interaction, ModelConfig, Pooling, TablesConfig
from data_prep.dataset.format import Manifest
from extensions.export.directory import (
    INLINE_BYTES,
    ServedModel,
    feeds_of,
    largest_difference,
    make_whole_model,
    packed_rows,
    random_batch,
    round_tables,
)
from extensions.export.documents import TablePrecision
from tests.app.datasets import RAGGED, write_ragged_dataset
from tests.error_lines import refused

TABLES = [
    *(TablesConfig(pooling=pooling) for pooling in get_args(Pooling)),
    TablesConfig(shared={"words": ["tags", "genres"]}),
]
MODELS = [
    *({"interaction": interaction} for interaction in get_args(Interaction)),
    {"interaction": "dot", "interaction_itself": True},
    {"interaction": "dcn", "dcn_full_rank": True, "deep_arch": [5, 3], "batch_norm": True, "dropout": [0.5]},
    {"interaction": "dot", "numeric": "vectors", "dense_arch": [], "linear": 3.0},
    {"interaction": "cat", "batch_norm": True, "dense_arch": [6, 8]},
]


@pytest.fixture(scope="module")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return write_ragged_dataset(tmp_path_factory.mktemp("ragged"), {"train": 10})


def rounded(weight: NDArray[np.float32], precision: TablePrecision) -> NDArray[np.float32]:
    """A table's values as they come back from a precision: the oracle."""
    if precision != "int8":
        return weight.astype(np.float16 if precision == "fp16" else np.float32).astype(np.float32)
    low, high = weight.min(axis=1, keepdims=True), weight.max(axis=1, keepdims=True)
    bias = low.astype(np.float16).astype(np.float32)
    scale = ((high - bias) / np.float32(255)).astype(np.float16).astype(np.float32)
    scale[scale == 0] = 1
    return np.clip(np.rint((weight - bias) * (np.float32(1) / scale)), 0, 255).astype(np.float32) * scale + bias


def model_of(manifest: Manifest, tables: TablesConfig, **settings: Any) -> Any:
    """A model of random weights, with statistics of batch norm as after training."""
    over = [] if settings.get("interaction") == "sum" else [4, 1]
    keys: dict[str, Any] = {"embedding_dim": 8, "dense_arch": [8], "over_arch": over, "tables": tables, **settings}
    torch.manual_seed(0)
    model = make_whole_model(AppConfig(model=ModelConfig(**keys)), manifest)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter.data, std=0.3)
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.uniform_(0.5, 1.5)
    return model.eval()


def require_equal(
    manifest: Manifest, model: Any, path: Path, precision: TablePrecision, inline_bytes: int = INLINE_BYTES
) -> None:
    """The exported logits are the model's, of features with one id and with bags of any number of ids."""
    ServedModel(model, 2, manifest.num_embeddings, RAGGED, precision, correction=0.5).save(path, inline_bytes)
    tables = {name: each for name, each in model.named_parameters() if ".bags." in name or ".rows." in name}
    expected = {name: rounded(each.detach().float().numpy(), precision) for name, each in tables.items()}
    round_tables(model, precision)
    for name, each in tables.items():
        np.testing.assert_array_equal(each.detach(), expected[name])
    served = model.requires_grad_(False)
    dense, bags = random_batch(manifest.num_embeddings, RAGGED, 2, 9)
    assert largest_difference(served, 0.5, path, [(dense, bags)], RAGGED) <= 1e-5
    assert largest_difference(served, 0.6, path, [(dense, bags)], RAGGED) == pytest.approx(0.1, abs=1e-5)
    assert np.isnan(largest_difference(served, 0.5, path, [(dense, bags), (dense * np.nan, bags)], RAGGED))
    logits, probabilities = InferenceSession(path).run(None, feeds_of(dense, bags, RAGGED))
    np.testing.assert_allclose(logits, served(dense, bags).numpy() + 0.5, rtol=0, atol=1e-5)
    np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-logits)), rtol=0, atol=1e-6)


@pytest.mark.medium
@pytest.mark.parametrize("settings", MODELS)
def test_every_interaction(ragged: Manifest, tmp_path: Path, settings: dict[str, Any]) -> None:
    require_equal(ragged, model_of(ragged, TablesConfig(), **settings), tmp_path / "m.onnx", "fp32")


@pytest.mark.medium
@pytest.mark.parametrize("precision", get_args(TablePrecision))
@pytest.mark.parametrize("tables", TABLES)
def test_tables_of_every_precision(
    ragged: Manifest, tmp_path: Path, tables: TablesConfig, precision: TablePrecision
) -> None:
    require_equal(ragged, model_of(ragged, tables), tmp_path / "m.onnx", precision)


@pytest.mark.parametrize(
    ("precision", "values"), [("fp16", [65_520.0, 0.0]), ("int8", [-65_520.0, 0.0]), ("int8", [0.0, 255 * 65_520.0])]
)
def test_values_beyond_fp16_are_refused(precision: TablePrecision, values: list[float]) -> None:
    """65,519 is the last that is rounded to fp16's largest number, 65,504."""
    weight = torch.tensor([[1.0, 2.0, 3.0, 4.0], [*values, 0.0, 0.0]])
    refused(f"tables={precision}: a table has values up to .* use tables=fp32", packed_rows, weight, precision)
    packed_rows(weight * (65_519 / 65_520), precision)


@pytest.mark.medium
def test_large_tables_lie_in_a_file_beside_the_model(ragged: Manifest, tmp_path: Path) -> None:
    model = model_of(ragged, TablesConfig(), dense_arch=[512, 8])
    require_equal(ragged, model, tmp_path / "m.onnx", "fp32", inline_bytes=0)
    assert {path.name for path in tmp_path.iterdir()} == {"m.onnx", "m.onnx.data"}
    entries = onnx.load(tmp_path / "m.onnx", load_external_data=False).graph.initializer
    assert any(entry.data_location == onnx.TensorProto.EXTERNAL for entry in entries)
