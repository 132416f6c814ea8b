"""Keys of preparation: what data_prep gets of them, and what they do beside a dataset that is there."""

import csv
import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.config.app_config import validate
from app.config.data import DataConfig
from app.data import prepare
from app.data.split import find_split
from common.compose import compose_config, convert
from common.documents import plain
from common.errors import UserError
from common.keys import check, flat_values, keys_of, refuse
from data_prep import config as preparation
from data_prep.config import CONFIG_DIRECTORY, PrepConfig, SplitConfig
from data_prep.dataset.format import load_manifest
from data_prep.dataset.options import GENERATORS, DenseTransform
from data_prep.pipeline import preprocess
from tests.app.conftest import composed
from tests.changed import changed
from tests.data_prep import oracle
from tests.data_prep.conftest import prepare as prepare_data
from tests.error_lines import refused
from tests.once import made_once

# Keys that decide the rows of the dataset `rows`: as it was made, and another value.
COMPARED: dict[str, tuple[Any, Any]] = {"encoding": ("vocabulary", "hash"), "frequency_threshold": (2, 1)}
COMPARED |= {"max_ind_range": (30, 31), "max_categories": (None, 900), "vocabulary_order": ("value", "frequency")}
COMPARED |= {"dense_transform": ("raw", "log1p"), "split.method": ("random", "fraction"), "split.held_out": (0.25, 0.5)}
COMPARED |= {"split.seed": (7, 8), "split.column": (None, "user"), "sampling.negative_drop_rate": (0.125, 0.5)}
COMPARED |= {"sampling.seed": (5, 6), "chunk_bytes": ("9000", "8000"), "keep_texts": (None, True)}
# Keys of generators: compared with a dataset that one of them made, and without effect on any other.
GENERATED = set(GENERATORS)
# Keys that say what to make a dataset from, and with what: without effect where none is made.
REFUSED: dict[str, Any] = {"overwrite": True, "scheduler": "tcp://h:1", "workers": 2, "memory_budget": "3GiB"}
REFUSED |= {"schema": "s.yaml", "label": "clicked", "days": [0], "remote.name": "x", "remote.days": 3, "remote.rows": 4}
REFUSED |= {"remote.mirrors": ["http://h/x"], "remote.sha256": {"x": "y"}, "remote.member": "x"}
REFUSED |= {"remote.also": {"x": ["y"]}, "remote.directory": "x", "remote.tries": 7, "remote.pause": 3.5}
REFUSED |= {"remote.timeout": 9.5}
OF_ITS_OWN = {"source", "raw", "train", "val", "test", "checksums", "path"}  # they make, or name, another dataset
OF_BOTH = {"allow_degenerate"}  # they have an effect on preparation and on training
OF_THE_COMMAND = {"generator_settings"}


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset for which no key is as by default."""

    def make(directory: Path) -> None:
        (directory / "day_0").write_bytes(oracle.make_rows(200, seed=0))
        overrides = [f"data.{key}={value}" for key, (value, _) in COMPARED.items() if value is not None]
        prepare_data(f"data.raw={directory}/day_0", f"data.path={directory}/out", *overrides)

    return made_once(tmp_path_factory, "existing_rows", make) / "out"


@pytest.fixture(scope="session")
def random_ids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of data.source=random."""

    def make(directory: Path) -> None:
        overrides = ["data.source=random", "data.random.rows=40", "data.random.eval_rows=4", "data.random.tables=[3,7]"]
        prepare_data(*overrides, f"data.path={directory}/out")

    return made_once(tmp_path_factory, "existing_random_ids", make) / "out"


def agreed(root: Path, *overrides: str, **settings: Any) -> DataConfig:
    """The configuration that a run on a dataset that is there records; `settings`: keys, with __ in place of a dot."""
    typed_data = composed(*overrides, f"data.path={root}").data
    typed = [*typed_data.generator_settings, *(key.replace("__", ".") for key in settings)]
    nested: list[Any] = [{"generator_settings": typed}]
    for key, value in settings.items():
        group, _, name = key.rpartition("__")
        nested.append({group: {name: value}} if group else {name: value})
    data = convert(DataConfig, plain(typed_data), *nested)
    refuse(data.faults())
    prepare.prepare(data)
    manifest = load_manifest(root)
    prepare.require_agreement(data, manifest)
    in_force = prepare.keep_recorded_settings(data, manifest)
    refuse(in_force.faults())  # as commands do that read a run's configuration
    return in_force


def recorded(config: DataConfig, key: str) -> Any:
    """The value of a key in a run's configuration."""
    return flat_values(config)[key]


def test_no_key_is_in_none_of_the_classes() -> None:
    everything = {key for key, *_ in keys_of(preparation.DataConfig)}
    of_generators = {key for key in everything if key.partition(".")[0] in GENERATED}
    assert everything == {*COMPARED, *REFUSED, *of_generators, *OF_ITS_OWN, *OF_BOTH, *OF_THE_COMMAND}


@pytest.mark.parametrize("key", COMPARED)
def test_a_key_of_the_rows_is_compared_and_recorded(rows: Path, key: str) -> None:
    value, other = COMPARED[key]
    name = key.replace(".", "__")
    if value is not None:
        assert recorded(agreed(rows, **{name: value}), key) == value
    prefix = re.escape(f"data.{key}={other}: the dataset at data.path={rows} was made with ")
    refused(rf"{prefix}.*, or data\.{re.escape(key)}=null to take it as it is", agreed, rows, **{name: other})
    assert recorded(agreed(rows, **{name: None}), key) == value


@pytest.mark.parametrize("key", REFUSED)
def test_a_key_without_effect_is_refused(rows: Path, key: str) -> None:
    with pytest.raises(UserError, match=rf"data\.{re.escape(key)}=.*has no effect on the dataset at"):
        agreed(rows, **{key.replace(".", "__"): REFUSED[key]})


def test_a_recipe_s_own_keys_count_as_given(rows: Path) -> None:
    with pytest.raises(UserError, match=r"data\.vocabulary_order=first_appearance: the dataset at .* with value"):
        agreed(rows, "recipe=deepspark_3day")
    with pytest.raises(UserError, match=r"data\.dense_transform=log_float32: the dataset at .* with raw"):
        agreed(rows, "recipe=deepspark_3day", "data.vocabulary_order=null")
    nothing = ["data.vocabulary_order=null", "data.dense_transform=null", "data.sampling.negative_drop_rate=null"]
    assert agreed(rows, "recipe=deepspark_3day", *nothing).dense_transform is DenseTransform.raw


@pytest.mark.medium
def test_keys_of_generators_are_compared_where_the_user_gave_them(rows: Path, random_ids: Path, tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("data: {random: {rows: 200000}}")
    key = "data.random.rows=200000"
    for given in (key, "data.random={rows: 200000}", f"++{key}", f"config={file}"):
        refused(r"data\.random\.rows=200000: the dataset at .* was made with 40; give anot", agreed, random_ids, given)
        refused(r"data\.random\.rows=200000: has no effect on the dataset at", agreed, rows, given)
    agreed(rows, "recipe=amd_2026", "data.multi_hot.sizes=null")  # which says of what random rows it would be
    agreed(rows, "recipe=quickstart", "data.scale=tiny")


@pytest.mark.medium
def test_a_recorded_configuration_goes_with_its_dataset(rows: Path, random_ids: Path, tmp_path: Path) -> None:
    for root in (rows, random_ids):
        recorded_file = tmp_path / "config.yaml"
        recorded_file.write_text(yaml.safe_dump({"data": plain(agreed(root))}))
        assert agreed(root, f"config={recorded_file}") == agreed(root)
    refused(r"data\.random\.\w+=.*: has no effect on the dataset at", agreed, rows, f"config={recorded_file}")


RECIPE = "recipe=deepspark_3day data.raw=[a] data.path=out"
OF_RECIPE = "data.encoding=vocabulary data.vocabulary_order=first_appearance data.dense_transform=log_float32"
OF_SPLITS = "data.train=[a,b] data.val=c data.test=d* data.checksums={a:x,c:y} data.schema=s.yaml data.path=out"
# What is typed, and what data_prep then gets; nothing: the same.
TYPED = {
    "data.raw=x data.path=out": "",
    "data.raw=[a,b] data.path=out data.encoding=hash data.max_ind_range=9 data.workers=2": "",
    f"{OF_SPLITS} data.frequency_threshold=2": "",
    "data.synthetic.rows=30 data.split.method=random": "data.source=synthetic data.synthetic.rows=30 "
    "data.split.method=random",
    "data.source=criteo_1tb data.default_path=d data.days=[0,1]": "data.source=criteo_1tb data.path=d data.days=[0,1]",
    RECIPE: f"data.raw=[a] data.path=out {OF_RECIPE} data.sampling.negative_drop_rate=0.875",
}


@pytest.mark.parametrize("typed", TYPED)
def test_data_prep_gets_what_its_own_command_line_would(typed: str) -> None:
    config = composed(*typed.split())
    validate(config)
    expected = compose_config(PrepConfig, CONFIG_DIRECTORY, (TYPED[typed] or typed).split())
    assert prepare._job(config.data) == expected


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


def test_a_split_without_files_is_not_evaluated(dataset_without_test: Path) -> None:
    manifest = load_manifest(dataset_without_test)
    assert find_split(dataset_without_test, manifest, "val").rows == ROWS["val"]
    with pytest.raises(UserError, match=r"made without data\.test, .* split=val for python -m app\.evaluate"):
        find_split(dataset_without_test, manifest, "test")
