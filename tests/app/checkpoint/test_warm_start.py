"""A run that begins with another run's parameters: bits of one uninterrupted run, and rows of tables by value."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.checkpoint.warm_start import NEW, Source, translate_rows
from app.config.model import ModelConfig
from app.model.embeddings import make_embeddings
from app.runtime.platform import Runtime
from data_prep.dataset.format import Manifest
from tests.app.conftest import SMALL, Command
from tests.app.in_process import command_here, train_here, train_until
from tests.app.run_files import events
from tests.data_prep import oracle
from tests.data_prep.conftest import prepare
from tests.error_lines import refused

BASE = [*SMALL, "data.shuffle=false", "checkpoint.keep_best=false"]


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Two days of hashed rows as one dataset, and each of them alone."""
    root = tmp_path_factory.mktemp("days")
    for number, name in enumerate(("day_0", "day_1", "val")):
        (root / name).write_bytes(oracle.make_rows(640 if name != "val" else 200, seed=number))
    keys = [f"data.val={root}/val", "data.encoding=hash", "data.max_ind_range=99"]
    for name, files in {"both": "day_?", "first": "day_0", "second": "day_1"}.items():
        prepare(f"data.train={root}/{files}", f"data.path={root}/{name}", *keys)
    return root / "both", root / "first", root / "second"


def digest(run: Path) -> str:
    return str(json.loads((run / "summary.json").read_text())["digest"]["parameters"])


OPTIMIZERS = ["sgd", "adagrad", pytest.param("rowwise_adagrad", marks=pytest.mark.slow), "adam"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_two_days_trained_in_turn_have_the_bits_of_both_at_once(
    optimizer: str, days: tuple[Path, Path, Path], runtime: Runtime, tmp_path: Path
) -> None:
    def train(data: Path, name: str, *overrides: str) -> Path:
        keys = [*BASE, f"optimizer={optimizer}", f"data.path={data}", f"run.dir={tmp_path}/{name}", *overrides]
        assert train_here(runtime, *keys) == "completed"
        return tmp_path / name

    whole, one, two = days
    train(one, "x")
    expected = digest(train(whole, "z"))
    assert digest(train(two, "y", f"checkpoint.warm_start_from={tmp_path}/x")) == expected
    anew = train(two, "w", f"checkpoint.warm_start_from={tmp_path}/x", "checkpoint.warm_start_optimizer=false")
    assert (digest(anew) == expected) == (optimizer == "sgd")


def test_it_is_killed_resumed_replayed_and_names_its_parent(
    days: tuple[Path, Path, Path], runtime: Runtime, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The evaluation before the first step is that of the parent's model on the new day's rows."""
    keys = [*BASE, "optimizer=adam", "checkpoint.every_steps=3", f"run.dir={tmp_path}/y", f"data.path={days[2]}"]
    assert train_here(runtime, *BASE, "optimizer=adam", f"data.path={days[1]}", f"run.dir={tmp_path}/x") == "completed"
    start = [*keys, f"checkpoint.warm_start_from={tmp_path}/x", "eval.before_training=true"]
    assert train_until(runtime, "kill:5", *start) == "killed"
    assert train_here(runtime, *start) == "completed"
    assert train_here(runtime, *start, f"run.dir={tmp_path}/z") == "completed"
    assert digest(tmp_path / "y") == digest(tmp_path / "z")
    first, *_ = events(tmp_path / "y", "eval")
    assert command_here(runtime, "evaluate", f"run={tmp_path}/x", "split=val") == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert (first["step"], first["auc"]) == (0, evaluated["auc"])  # val is the same on both days
    parent = json.loads((tmp_path / "y/manifest.json").read_text())["parent"]
    assert (parent["run"], parent["step"], parent["updates"]) == (f"{tmp_path}/x", 10, 10)
    assert command_here(runtime, "verify", f"run={tmp_path}/y") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "identical"
    shutil.rmtree(tmp_path / "x/checkpoints")
    refused("which is not there; restore it", command_here, runtime, "verify", f"run={tmp_path}/y")


@pytest.mark.slow("processes")
def test_the_layout_changes_no_bits(days: tuple[Path, Path, Path], run_app: Command, tmp_path: Path) -> None:
    """Tables that one process has whole are divided by rows among two, and the other way round."""
    base = [*BASE, "optimizer=adam", "train.deterministic=layout", "train.micro_batch_size=16"]
    start = [*base, f"data.path={days[2]}", "sharding=row_wise"]
    for first, second in ((1, 2), (2, 1)):
        run_app("train", *base, f"data.path={days[1]}", f"run.name=x{first}", processes=first)
        for processes in (first, second):
            keys = [f"run.name=y{first}{processes}", f"checkpoint.warm_start_from=runs/x{first}"]
            run_app("train", *start, *keys, processes=processes)
    digests = {digest(tmp_path / f"runs/y{name}") for name in ("11", "12", "22", "21")}
    assert len(digests) == 1


FEATURES = ("a", "b")
VALUES = st.lists(st.integers(0, 30), unique=True, max_size=20)


@given(before=st.tuples(VALUES, VALUES), now=st.tuples(VALUES, VALUES))
def test_rows_are_those_of_the_same_values(
    before: tuple[list[int], list[int]], now: tuple[list[int], list[int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Against dictionaries of values; row 0 is that of unknown ones in both."""
    roots = [tmp_path_factory.mktemp("root") for _ in range(2)]
    manifests = []
    for root, values in zip(roots, (before, now), strict=True):
        (root / "vocab").mkdir()
        for feature, column in zip(FEATURES, values, strict=True):
            np.save(root / "vocab" / f"{feature}.npy", np.array(column, np.uint32))
        sizes = {feature: len(column) + 1 for feature, column in zip(FEATURES, values, strict=True)}
        schema = {"label": "y", "dense": [], "sparse": list(FEATURES)}
        encoding = {"name": "vocabulary", "first_id": 1, "unknown_id": 0, "vocabulary": values}
        manifests.append(Manifest(schema, encoding, sizes, {}, [], 0, 0.0, "test"))
    there, here = manifests
    embeddings = make_embeddings(ModelConfig(embedding_dim=4), here.num_embeddings)
    rows = translate_rows(embeddings, Source(roots[0], roots[0], there), roots[1], here)
    for embedding, old, new in zip(embeddings, before, now, strict=True):
        places = {value: number + 1 for number, value in enumerate(old)}
        expected = [0, *(places.get(value, NEW) for value in new)]
        translated = rows.get(embedding.tables[0].name)  # absent: the same dataset
        assert (list(range(len(expected))) if translated is None else translated.tolist()) == expected


def test_what_does_not_fit_is_refused_with_the_remedy(
    days: tuple[Path, Path, Path], runtime: Runtime, tmp_path: Path
) -> None:
    keys = [*BASE, f"data.path={days[1]}", "train.max_steps=2", "optimizer=adagrad"]
    assert train_here(runtime, *keys, f"run.dir={tmp_path}/x") == "completed"
    start = [*keys, f"run.dir={tmp_path}/y", f"checkpoint.warm_start_from={tmp_path}/x"]
    for override, message in {
        "model.embedding_dim=8 model.dense_arch=[32,8]": "give model.embedding_dim=16",
        "model.over_arch=[24,1]": r"checkpoint\.warm_start_skip=\[over_arch\.0\]",
        "optimizer=sgd": "give checkpoint.warm_start_optimizer=false",
        f"run.dir={tmp_path}/x checkpoint.resume=never checkpoint.overwrite=true": "is this run itself",
        "checkpoint.warm_start_from=nowhere": "nowhere",
        "checkpoint.resume=nowhere": "leave one out",
    }.items():
        refused(message, train_here, runtime, *start, *override.split())
    layers = ["model.over_arch=[24,1]", "checkpoint.warm_start_skip=[over_arch]"]
    assert train_here(runtime, *start, *layers) == "completed"
