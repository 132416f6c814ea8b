"""Files given for each split, from the command line of a run to its evaluation."""

import csv
import random
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from app.config.app_config import validate
from app.data import prepare
from app.data.split import find_split
from common.compose import compose_config
from common.errors import UserError
from common.keys import check
from data_prep.config import CONFIG_DIRECTORY, PrepConfig, SplitConfig
from data_prep.dataset.format import load_manifest
from data_prep.pipeline import preprocess
from tests.app.conftest import SMALL, Command, Refusal, composed
from tests.app.run_files import summary
from tests.changed import changed
from tests.data_prep.conftest import prepare as prepare_data
from tests.once import made_once

ROWS = {"train": 300, "val": 80}
GIVEN = ["data.train=train.csv", "data.val=val.csv", "data.schema=schema.yaml"]


def write_files(directory: Path) -> None:
    draw = random.Random(0)
    for split, count in ROWS.items():
        with open(directory / f"{split}.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)  # whose lines end in CRLF
            writer.writerow(["label", "price", "user"])
            for _ in range(count):
                writer.writerow([draw.randint(0, 1), draw.randint(0, 50), f"u{draw.randint(0, 20)}"])
    (directory / "schema.yaml").write_text("label: label\ndense: [price]\nsparse: [user]\n")


@pytest.fixture(scope="module")
def dataset_without_test(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset without rows of test."""

    def make(directory: Path) -> None:
        write_files(directory)
        overrides = [override.replace("=", f"={directory}/") for override in [*GIVEN, "data.path=out"]]
        prepare_data(*overrides)

    return made_once(tmp_path_factory, "given_splits", make) / "out"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.val=b"], "data.val: needs data.train"),
        (["data.train=a", "data.test=c"], "or data.split.held_out=0.1 to hold it out of train, or eval.split=test"),
        (["data.train=a"], "eval.split=val: data.val is not given; give it, or eval.split=train"),
    ],
)
def test_refused_before_a_run_begins(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        validate(composed(*overrides, "data.path=out"))


def test_the_remedies_work() -> None:
    remedies = ["data.test=c eval.split=test", "eval.split=train", "data.val=b", "data.test=c data.split.held_out=0.1"]
    for overrides in remedies:
        validate(composed("data.train=a", "data.path=out", *overrides.split()))


def test_files_need_a_path_and_no_source() -> None:
    for overrides, message in (
        (["data.train=a"], "data.path: not given; name the directory"),
        (["data.train=a", "data.source=random", "data.path=b"], "data.source=random: has no effect with data.train=a"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            prepare._job(composed(*overrides).data)


def test_data_prep_gets_what_its_own_command_line_would() -> None:
    overrides = ["data.train=[a,b]", "data.val=c", "data.test=d*", "data.checksums={a: x, c: y}", "data.schema=s.yaml"]
    overrides += ["data.path=out", "data.frequency_threshold=2"]
    job = prepare._job(composed(*overrides).data)
    assert job == compose_config(PrepConfig, CONFIG_DIRECTORY, overrides)


def test_what_a_run_records_makes_the_same_dataset(dataset_without_test: Path, tmp_path: Path) -> None:
    data = composed(f"data.path={dataset_without_test}").data
    manifest = load_manifest(dataset_without_test)
    prepare.require_agreement(data, manifest)
    recorded = prepare.keep_recorded_settings(data, manifest)
    assert recorded.split == SplitConfig()
    files = {"train": f"{dataset_without_test.parent}/train.csv", "val": f"{dataset_without_test.parent}/val.csv"}
    data_config = changed(
        recorded, {**files, "schema": f"{dataset_without_test.parent}/schema.yaml", "path": str(tmp_path / "again")}
    )
    check(data_config)
    job = prepare._job(data_config)
    assert job is not None
    preprocess(changed(job.data, {"workers": 1}))
    assert load_manifest(tmp_path / "again").digest == manifest.digest


def test_a_method_is_refused_on_such_a_dataset(dataset_without_test: Path) -> None:
    data = composed(f"data.path={dataset_without_test}", "data.split.method=random").data
    message = "data.split.method=random: the dataset .* was made with files given for each split; .*split.method=null"
    with pytest.raises(UserError, match=message):
        prepare.require_agreement(data, load_manifest(dataset_without_test))


def test_a_split_without_files_is_not_evaluated(dataset_without_test: Path) -> None:
    manifest = load_manifest(dataset_without_test)
    assert find_split(dataset_without_test, manifest, "val").rows == ROWS["val"]
    with pytest.raises(UserError, match=r"made without data\.test, .* split=val for python -m app\.evaluate"):
        find_split(dataset_without_test, manifest, "test")


@pytest.mark.slow("processes")
def test_a_run_makes_trains_and_evaluates(run_app: Command, refused_command: Refusal, tmp_path: Path) -> None:
    write_files(tmp_path)
    overrides = ["model=dlrm", *SMALL, *GIVEN, "data.path=shards", "run.name=given", "record.tensorboard=false"]
    run_app("train", *overrides, "train.max_steps=4")
    figures = summary(tmp_path / "runs/given")["eval"]
    with open(tmp_path / "val.csv", encoding="utf-8", newline="") as file:
        labels = [int(row["label"]) for row in csv.DictReader(file)]
    assert figures["samples"] == len(labels)
    assert figures["base_rate"] == pytest.approx(np.mean(labels))
    recorded = yaml.safe_load((tmp_path / "runs/given/config.yaml").read_text())["data"]
    assert (recorded["train"], recorded["val"], recorded["test"]) == ("train.csv", "val.csv", None)
    assert "made without data.test" in refused_command("evaluate", "run=runs/given", "checkpoint=latest")
    run_app("evaluate", "run=runs/given", "checkpoint=latest", "split=val")


def test_a_split_that_chance_left_empty_is_not_evaluated(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("label,user\n" + "1,a\n0,b\n" * 3)
    (tmp_path / "schema.yaml").write_text("label: label\nsparse: [user]\n")
    keys = [f"data.raw={tmp_path}/rows.csv", f"data.schema={tmp_path}/schema.yaml"]
    for share in ("0.001", "0"):
        root = tmp_path / share
        manifest = prepare_data(*keys, f"data.path={root}", f"data.split.held_out={share}")
        assert manifest.splits["val"].rows == 0
    assert not find_split(root, manifest, "val").rows  # no row was to be held out
    message = r"val has no rows, as data\.split\.method=random left none of 6 .*eval\.split=train"
    with pytest.raises(UserError, match=message):
        find_split(tmp_path / "0.001", load_manifest(tmp_path / "0.001"), "val")
