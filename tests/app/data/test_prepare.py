"""What data_prep gets of a run's configuration."""

import pickle
from pathlib import Path

import pytest

from app.config.app_config import validate
from app.data import prepare
from common.compose import compose_config
from data_prep.config import CONFIG_DIRECTORY, PrepConfig
from data_prep.dataset.format import load_manifest
from tests.app.conftest import SMALL, composed, ended, forked
from tests.changed import changed
from tests.error_lines import error_line, refused


@pytest.mark.medium
@pytest.mark.parametrize(
    "path", ["h\\'i\\j{k}", *(pytest.param(path, marks=pytest.mark.slow) for path in ("a b/c,d[1]=e'f", 'g"ü*.gz\\'))]
)
def test_a_path_of_any_characters_reaches_data_prep(path: str, tmp_path: Path) -> None:
    overrides = ["data.source=random", "data.random.rows=40", "data.random.eval_rows=4", "data.random.tables=[3,7]"]
    config = composed(*overrides, "data.random.num_dense=2")
    data = changed(config.data, {"path": str(tmp_path / path)})
    prepare.prepare(data)
    assert load_manifest(tmp_path / path).rows == 48
    data = changed(data, {"source": None, "raw": [f"{tmp_path}/{path}/raw", "x"]})
    job = prepare._job(data)
    assert job is not None
    assert pickle.loads(pickle.dumps(job)).data.raw == data.raw


@pytest.mark.parametrize(
    ("overrides", "prep_overrides"),
    [
        (["data.raw=x", "data.path=out"], ["data.raw=x", "data.path=out"]),
        (
            ["data.raw=[a,b]", "data.path=out", "data.encoding=hash", "data.max_ind_range=9", "data.workers=2"],
            ["data.raw=[a,b]", "data.path=out", "data.encoding=hash", "data.max_ind_range=9", "data.workers=2"],
        ),
        (
            ["data.synthetic.rows=30", "data.synthetic.days=3", "data.split.method=random"],
            ["data.source=synthetic", "data.synthetic.rows=30", "data.synthetic.days=3", "data.split.method=random"],
        ),
        (
            ["data.source=criteo_1tb", "data.default_path=d", "data.days=[0,1]", "data.memory_budget=8GiB"],
            ["data.source=criteo_1tb", "data.path=d", "data.days=[0,1]", "data.memory_budget=8GiB"],
        ),
        (
            ["recipe=deepspark_3day", "data.raw=[a]", "data.path=out"],
            [
                "data.raw=[a]",
                "data.path=out",
                "data.encoding=vocabulary",
                "data.vocabulary_order=first_appearance",
                "data.dense_transform=log_float32",
                "data.sampling.negative_drop_rate=0.875",
            ],
        ),
    ],
)
def test_data_prep_gets_what_its_own_command_line_would(overrides: list[str], prep_overrides: list[str]) -> None:
    config = composed(*overrides)
    validate(config)
    assert prepare._job(config.data) == compose_config(PrepConfig, CONFIG_DIRECTORY, prep_overrides)


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("+data.split.metod=random", r"Key 'metod' not in 'SplitConfig'; did you mean data\.split\.method\?"),
        ("data.zzzzzzzz=1", "Key 'zzzzzzzz' not in 'DataConfig'; --help all lists the keys"),
        ("data.split.held_out=many", r"data\.split\.held_out=many: must be a number"),
        ("data.split=3", r"data\.split is a group of keys; give one of them, such as data\.split\.method"),
        ("data.encoding=zip", "data.encoding=zip: not one of vocabulary, hash"),
        ("data.source=nowhere", "data.source=nowhere: not one of .*criteo_1tb"),
        ("data.synthetic.rows=many", "data.synthetic.rows=many: must be a whole number"),
    ],
)
def test_a_key_that_data_prep_does_not_have_is_refused_at_start(override: str, error: str) -> None:
    refused(error, lambda: validate(composed(override)))


@pytest.mark.slow("processes")
@pytest.mark.parametrize("fault", ["other rows", "not a directory"])
def test_what_is_refused_of_a_dataset_that_is_there_ends_all_processes(fault: str, tmp_path: Path) -> None:
    """The check is that of rank 0; another process is not left waiting for it."""
    rows = ["data.source=random", f"data.path={tmp_path / 'rows'}", "data.random.tables=[3,7]"]
    small = [*SMALL, *rows, "data.random.eval_rows=64", "run.name=a", "train.max_steps=1", "baselines=false"]
    preparation = ended(forked("train", *small, "data.random.rows=640", cwd=tmp_path, processes=2), tmp_path)
    assert preparation.returncode == 0, preparation.stderr
    count, words = 700, "random.rows"
    if fault == "not a directory":
        (tmp_path / "rows/.work").write_text("")
        count, words = 640, "rows/.work: File exists"
    process = ended(forked("train", *small, f"data.random.rows={count}", cwd=tmp_path, processes=2), tmp_path)
    assert process.returncode == 2, process.stderr
    assert process.stderr.count("error: ") == 1
    assert words in error_line(process.stderr)
