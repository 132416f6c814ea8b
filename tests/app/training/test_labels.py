"""Labels of one class are not trained on, unless the user means it."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.config import DataConfig
from app.config.data import NegativesConfig
from app.training.labels import refuse_one_class
from common.errors import UserError
from tests.data_prep import oracle
from tests.data_prep.conftest import prepare


def test_a_train_split_of_one_class_is_refused(tmp_path: Path) -> None:
    lines = oracle.make_rows(60, seed=1).decode().splitlines(keepends=True)
    (tmp_path / "day_0").write_text("".join(f"{int(row >= 52)}{line[1:]}" for row, line in enumerate(lines)))
    manifest = prepare(f"data.raw={tmp_path}/day_0", f"data.path={tmp_path}/out")
    assert manifest.splits["train"].label_rate == 0
    with pytest.raises(UserError, match=r"every label of train is 0, so no model.*or give data.allow_degenerate=true"):
        refuse_one_class(DataConfig(), tmp_path, manifest)
    refuse_one_class(DataConfig(allow_degenerate=True), tmp_path, manifest)
    refuse_one_class(DataConfig(negatives=NegativesConfig(per_positive=1)), tmp_path, manifest)
    splits = manifest.splits | {"train": replace(manifest.splits["train"], label_rate=0.5)}
    refuse_one_class(DataConfig(), tmp_path, replace(manifest, splits=splits))
