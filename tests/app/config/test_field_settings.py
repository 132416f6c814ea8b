"""Settings of the field's models: what is refused, in one line with a remedy, before anything is made."""

from pathlib import Path

import pytest

from app.config import CONFIG_DIR, validate
from app.config.commands import BenchConfig, validate_bench
from app.training import meta_build
from common.compose import compose_config
from common.errors import UserError
from tests.app.conftest import composed

DATA = ["data.path=none"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.dropout=1"], r"model\.dropout=\[1\.0\]: must be a list of numbers in \[0, 1\)"),
        (["model.dropout=[0.1,0.2,0.3]"], r"model\.over_arch has 2 hidden layers; give one rate for all, or 2"),
        (["model.dropout=0.1", "model.over_arch=[1]"], "model.dropout=.*: has no effect without a hidden layer"),
        (["model.dense_arch=[]", "model.interaction=projection"], "needs its vector; give widths that end with"),
        (["model.numeric=vectors"], r"has no effect with model\.numeric=vectors; give model\.dense_arch=\[\]"),
        (["model.interaction=sum"], r"has no effect with model\.interaction=sum.*give model\.over_arch=\[\]"),
        (["model.deep_arch=[8]"], r"model\.deep_arch=\[8\]: has no effect with model\.interaction=dot"),
        (
            ["model.interaction=dcn", "model.dcn_full_rank=true", "model.dcn_low_rank_dim=4"],
            "has no effect with model.dcn_full",
        ),
        (["model.batch_norm=true", "train.global_batch_size=1"], "needs at least two rows in a batch"),
        (["optimizer.clip_tables=true"], r"has no effect without optimizer\.max_grad_norm"),
        (["optimizer=lamb", "optimizer.weight_decay=0.1"], "lamb has none; use one of sgd, adagrad"),
        (["optimizer=rowwise_adam", "optimizer.sparse_weight_decay=0.1"], "rowwise_adam has none; use one of"),
        (["schedule.threshold=0.01"], "has no effect without schedule=plateau or train.early_stop_patience"),
        (["recipe=bars_frappe_x1", "model=dlrm_dcn"], "published with model=dlrm, dcnv2, crossnetv2, dnn or lr"),
    ],
)
def test_settings_without_effect_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        validate(composed(*DATA, *overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        ["train.early_stop_patience=2", "schedule.threshold=0.01", "train.eval_every_steps=5"],
        ["model.dropout=0.2", "model.dense_dropout=[0.1,0.2,0.3]"],
        ["model=lr", "optimizer=adam", "optimizer.sparse_weight_decay=1e-5"],
    ],
)
def test_settings_with_an_effect_are_taken(overrides: list[str]) -> None:
    validate(composed(*DATA, *overrides))


@pytest.mark.parametrize("overrides", [["model=dcnv2"], ["recipe=bars_criteo_x1"], ["model=lr"]])
def test_bench_refuses_what_it_cannot_measure(overrides: list[str]) -> None:
    config = compose_config(BenchConfig, CONFIG_DIR, overrides, "bench")
    with pytest.raises(UserError, match="bench measures models with a dense_arch whose vectors have a multiple of 4"):
        validate_bench(config)


def test_a_recipe_whose_files_are_not_there_is_built_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = composed("recipe=bars_frappe_x1", "train.max_steps=0")
    assert meta_build.is_wanted(config)
    (tmp_path / "data/frappe_x1").mkdir(parents=True)
    (tmp_path / "data/frappe_x1/train.csv").touch()
    assert not meta_build.is_wanted(config)
