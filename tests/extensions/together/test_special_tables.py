"""Tables of extensions.special_tables in models that are served and exported."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app import scoring
from app.config.commands import TablePrecision
from app.config.model import Pooling, Storage, TablesConfig
from data_prep.dataset.format import Manifest
from extensions.special_tables import QROperation, RowWeights, TableKind
from tests.app.scoring.test_evaluate import ragged as ragged
from tests.app.scoring.test_evaluate import random_model, random_samples, rounded
from tests.extensions.export.test_onnx import model_of, require_equal

QR: dict[str, Any] = {"kind": TableKind.qr, "min_rows": 5}
MIXED: dict[str, Any] = {"kind": TableKind.mixed_dimension, "min_rows": 5}
EXPORTED: list[dict[str, Any]] = [
    *({**QR, "qr_operation": operation, "pooling": pooling} for operation in QROperation for pooling in Pooling),
    {**QR, "qr_operation": QROperation.mult, "row_weights": RowWeights.learned},
    {**MIXED, "dim": 4, "shared": {"words": ["tags", "genres"]}},
    {"row_weights": RowWeights.learned},
]
SERVED: list[dict[str, Any]] = [
    {**MIXED, "pooling": Pooling.mean, "storage": Storage.fp16},
    {**QR, "overrides": {"tags": {"pooling": "mean"}}},
    {**QR, "qr_operation": QROperation.concat, "shared": {"both": ["user", "item"]}},
    {"row_weights": RowWeights.learned},
]


PRECISIONS = [TablePrecision.fp32, TablePrecision.fp16, TablePrecision.int8] * len(EXPORTED)


@pytest.mark.medium
@pytest.mark.parametrize(("keys", "precision"), list(zip(EXPORTED, PRECISIONS, strict=False)))
def test_the_graph_scores_as_the_model(
    ragged: Manifest, tmp_path: Path, keys: dict[str, Any], precision: TablePrecision
) -> None:
    require_equal(ragged, model_of(ragged, TablesConfig(**keys)), tmp_path / "m.onnx", precision)


@pytest.mark.parametrize("precision", list(TablePrecision))
@pytest.mark.parametrize("keys", SERVED, ids=["mixed", "qr", "concat", "weighted"])
def test_logits_are_those_of_rounded_tables(ragged: Manifest, precision: TablePrecision, keys: dict[str, Any]) -> None:
    dense, bags = random_samples(9)
    truth = random_model(ragged, TablesConfig(**keys))
    for name, parameter in truth.named_parameters():
        if ".bags." in name or ".rows." in name:
            parameter.data = torch.from_numpy(rounded(parameter.data.float().numpy(), precision))
    served = scoring.convert_tables(random_model(ragged, TablesConfig(**keys)), precision, torch.device("cpu"))
    with torch.no_grad():
        expected, logits = truth(dense, bags), served(dense, bags)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())
