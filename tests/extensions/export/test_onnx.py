"""model.onnx against the model itself: interactions, tables, precisions, large tables."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnxruntime import InferenceSession

from app import scoring
from app.config.app_config import AppConfig
from app.config.commands import TablePrecision
from app.config.model import Interaction, ModelConfig, Numeric, Pooling, TablesConfig
from data_prep.dataset.format import Manifest
from extensions.export.directory import feeds_of, largest_difference, random_batch
from extensions.export.graph import INLINE_BYTES, ServedModel
from tests.app.datasets import RAGGED
from tests.app.scoring.test_evaluate import ragged as ragged

pytestmark = pytest.mark.medium  # an export takes three seconds
CPU = torch.device("cpu")
TABLES = [*(TablesConfig(pooling=pooling) for pooling in Pooling), TablesConfig(shared={"words": ["tags", "genres"]})]
MODELS = [
    *({"interaction": interaction} for interaction in Interaction),
    {"interaction": Interaction.dot, "interaction_itself": True},
    {"interaction": Interaction.dcn, "dcn_full_rank": True, "deep_arch": [5, 3], "batch_norm": True, "dropout": [0.5]},
    {"interaction": Interaction.dot, "numeric": Numeric.vectors, "dense_arch": [], "linear": 3.0},
    {"interaction": Interaction.cat, "batch_norm": True, "dense_arch": [6, 8]},
]


def model_of(manifest: Manifest, tables: TablesConfig, **settings: Any) -> Any:
    """A model of random weights, with statistics of batch norm as after training."""
    over = [] if settings.get("interaction") is Interaction.sum else [4, 1]
    keys: dict[str, Any] = {"embedding_dim": 8, "dense_arch": [8], "over_arch": over, "tables": tables, **settings}
    torch.manual_seed(0)
    model = scoring.make_whole_model(AppConfig(model=ModelConfig(**keys)), manifest)
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
    served = scoring.convert_tables(model, precision, CPU)
    dense, bags = random_batch(manifest.num_embeddings, RAGGED, 2, 9)
    assert largest_difference(served, 0.5, path, [(dense, bags)], RAGGED) <= 1e-5
    assert largest_difference(served, 0.6, path, [(dense, bags)], RAGGED) == pytest.approx(0.1, abs=1e-5)
    assert np.isnan(largest_difference(served, 0.5, path, [(dense, bags), (dense * np.nan, bags)], RAGGED))
    logits, probabilities = InferenceSession(path).run(None, feeds_of(dense, bags, RAGGED))
    np.testing.assert_allclose(logits, served(dense, bags).numpy() + 0.5, rtol=0, atol=1e-5)
    np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-logits)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("settings", MODELS)
def test_every_interaction(ragged: Manifest, tmp_path: Path, settings: dict[str, Any]) -> None:
    require_equal(ragged, model_of(ragged, TablesConfig(), **settings), tmp_path / "m.onnx", TablePrecision.fp32)


@pytest.mark.parametrize("precision", [TablePrecision.fp32, TablePrecision.fp16, TablePrecision.int8])
@pytest.mark.parametrize("tables", TABLES)
def test_tables_of_every_precision(
    ragged: Manifest, tmp_path: Path, tables: TablesConfig, precision: TablePrecision
) -> None:
    require_equal(ragged, model_of(ragged, tables), tmp_path / "m.onnx", precision)


def test_large_tables_lie_in_a_file_beside_the_model(ragged: Manifest, tmp_path: Path) -> None:
    model = model_of(ragged, TablesConfig(), dense_arch=[512, 8])
    require_equal(ragged, model, tmp_path / "m.onnx", TablePrecision.fp32, inline_bytes=0)
    assert {path.name for path in tmp_path.iterdir()} == {"m.onnx", "m.onnx.data"}
    entries = onnx.load(tmp_path / "m.onnx", load_external_data=False).graph.initializer
    assert any(entry.data_location == onnx.TensorProto.EXTERNAL for entry in entries)
