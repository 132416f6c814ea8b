"""Tables of extensions.special_tables in models that are served and exported."""

from pathlib import Path
from typing import Any, get_args

import pytest

from app.config.model import Pooling, TablesConfig
from data_prep.dataset.format import Manifest
from extensions.export.documents import TablePrecision
from extensions.special_tables import QROperation
from tests.extensions.export.test_onnx import model_of, require_equal
from tests.extensions.export.test_onnx import ragged as ragged

QR: dict[str, Any] = {"kind": "qr", "min_rows": 5}
MIXED: dict[str, Any] = {"kind": "mixed_dimension", "min_rows": 5}
EXPORTED: list[dict[str, Any]] = [
    *(
        {**QR, "qr_operation": operation, "pooling": pooling}
        for operation in get_args(QROperation)
        for pooling in get_args(Pooling)
    ),
    {**QR, "qr_operation": "mult", "row_weights": "learned"},
    {**MIXED, "dim": 4, "shared": {"words": ["tags", "genres"]}},
    {"row_weights": "learned"},
]
PRECISIONS = [*get_args(TablePrecision)] * len(EXPORTED)


@pytest.mark.medium
@pytest.mark.parametrize(("keys", "precision"), list(zip(EXPORTED, PRECISIONS, strict=False)))
def test_the_graph_scores_as_the_model(
    ragged: Manifest, tmp_path: Path, keys: dict[str, Any], precision: TablePrecision
) -> None:
    require_equal(ragged, model_of(ragged, TablesConfig(**keys)), tmp_path / "m.onnx", precision)
