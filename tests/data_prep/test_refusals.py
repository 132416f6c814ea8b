"""Whatever a command refuses, all files are as they were before: checks come before side effects."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from common.compose import compose_config
from common.errors import UserError
from common.keys import keys_of
from data_prep import compare, generate, interchange, profile, verify
from data_prep.__main__ import main as prepare
from data_prep.config.compose import CONFIG_DIRECTORY
from data_prep.config.keys import PrepConfig
from data_prep.pipeline import preprocess
from tests.changed import changed
from tests.data_prep import oracle
from tests.data_prep.conftest import config
from tests.data_prep.mirror import make_archive
from tests.once import made_once

COMMANDS: dict[str, Callable[[PrepConfig], int]] = {
    "interchange": interchange.main,
    "profile": profile.main,
    "generate": generate.main,
    "compare": compare.main,
    "verify": verify.main,
}
SYNTHETIC = ["data=synthetic", "data.synthetic.rows=300", "data.synthetic.max_cardinality=50"]
EVENTS = ["data=synthetic_events", "data.synthetic_events.users=20", "data.synthetic_events.days=3"]
KAGGLE = ["data=criteo_kaggle", "data.encoding=hash", "data.max_ind_range=9"]


def files(root: Path) -> dict[str, str]:
    """SHA-256 of every file below `root`."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def run(name: str, *overrides: str) -> None:
    """Do what `python -m data_prep` or one of its other commands does."""
    if name == "data_prep":
        preprocess(config(*overrides))
    else:
        COMMANDS[name](compose_config(PrepConfig, CONFIG_DIRECTORY, overrides))


@pytest.fixture(scope="session")
def of_days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two days."""
    return made_once(tmp_path_factory, "of_days", lambda directory: set_up(directory, *DAYS))


def set_up(directory: Path, *overrides: str) -> None:
    """Two days, foreign files, archives, and a dataset at `out`."""
    for day in range(2):
        (directory / f"day_{day}").write_bytes(oracle.make_rows(60, seed=day))
    (directory / "foreign").mkdir()
    (directory / "foreign/thesis.txt").write_text("years of work")
    make_archive(directory / "one.tar.gz", [("train.txt", oracle.make_rows(70, 0))])
    make_archive(directory / "two.tar.gz", [("train.txt", oracle.make_rows(70, 1))])
    run("data_prep", *(override.format(directory) for override in overrides), f"data.path={directory}/out")


DAYS = ["data.raw=[{0}/day_0,{0}/day_1]"]
# What makes `out`; the command; its overrides; what its refusal has.
REFUSALS: dict[str, tuple[list[str], str, list[str], str]] = {
    "other synthetic rows": (
        SYNTHETIC,
        "data_prep",
        [*SYNTHETIC, "data.synthetic.rows=400", "data.path={0}/out"],
        r"synthetic\.rows is 300 there, 400 here",
    ),
    "other synthetic rows, elsewhere": (
        [*SYNTHETIC, "data.raw={0}/raw"],
        "data_prep",
        [*SYNTHETIC, "data.synthetic.seed=4", "data.raw={0}/raw", "data.path={0}/out"],
        r"synthetic\.seed is 0 there",
    ),
    "other descriptions": (
        [*SYNTHETIC, "data.synthetic.direct=true"],
        "data_prep",
        [*SYNTHETIC, "data.synthetic.direct=true", "data.synthetic.days=2", "data.path={0}/out"],
        "days is 1 there",
    ),
    "synthetic rows where other rows are": (
        DAYS,
        "data_prep",
        [*SYNTHETIC, "data.path={0}/out"],
        "holds another dataset",
    ),
    "other events": (
        EVENTS,
        "data_prep",
        [*EVENTS, "data.synthetic_events.seed=4", "data.path={0}/out"],
        r"synthetic_events\.seed is 0 there, 4 here",
    ),
    "events where rows are": (DAYS, "data_prep", [*EVENTS, "data.path={0}/out"], "holds another dataset"),
    "synthetic rows among foreign files": (
        DAYS,
        "data_prep",
        [*SYNTHETIC, "data.path={0}/foreign"],
        "files that are not a dataset's",
    ),
    "events among foreign files": (
        DAYS,
        "data_prep",
        [*EVENTS, "data.path={0}/foreign"],
        "files that are not a dataset's",
    ),
    "fetched days among foreign files": (
        DAYS,
        "data_prep",
        ["data=criteo_1tb", "data.days=[0]", "data.remote.mirrors=[]", "data.path={0}/foreign"],
        "files that are not a dataset's",
    ),
    "an archive among foreign files": (
        DAYS,
        "data_prep",
        [*KAGGLE, "data.raw={0}/one.tar.gz", "data.path={0}/foreign"],
        "files that are not a dataset's",
    ),
    "another archive": (
        DAYS,
        "data_prep",
        [*KAGGLE, "data.raw={0}/two.tar.gz", "data.path={0}/out"],
        "holds another dataset",
    ),
    "other parameters": (
        DAYS,
        "data_prep",
        [*DAYS, "data.dense_transform=raw", "data.path={0}/out"],
        "dense_transform is log1p there",
    ),
    "a bad row": (
        DAYS,
        "data_prep",
        ["data.raw={0}/foreign/thesis.txt", "data.path={0}/out", "data.overwrite=true"],
        "row 1",
    ),
    "a dataset is there": (
        DAYS,
        "interchange",
        ["data.path={0}/out", "exchange.source={0}/foreign"],
        "no day_N_labels.npy|already",
    ),
    "no dataset to export": (DAYS, "interchange", ["data.path={0}/none", "exchange.to={0}/new"], "no dataset here"),
    "not as integers": (
        DAYS,
        "interchange",
        ["data.path={0}/out", "exchange.to={0}/new", "exchange.format=bin"],
        "integers are transformed",
    ),
    "no profile": (
        DAYS,
        "generate",
        ["locality.profile={0}/day_0", "locality.to={0}/new"],
        "not a locality profile",
    ),
    "no such split": (
        DAYS,
        "profile",
        ["locality.trace={0}/out", "locality.profile={0}/new.npz", "locality.split=dev"],
        "no split",
    ),
    "other tables": (
        DAYS,
        "compare",
        ["locality.trace={0}/out", "locality.other={0}/day_0", "locality.plot={0}/new.svg"],
        "its tables are|is not a whole number",
    ),
}


SLOW = ("other synthetic rows, elsewhere", "other descriptions", "events among foreign files", "other tables")


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.slow] * (case in SLOW)) for case in REFUSALS])
def test_files_are_as_they_were(tmp_path: Path, of_days: Path, case: str) -> None:
    made_by, name, overrides, message = REFUSALS[case]
    if made_by == DAYS:
        shutil.copytree(of_days, tmp_path, dirs_exist_ok=True)
    else:
        set_up(tmp_path, *made_by)
    before = files(tmp_path)
    with pytest.raises(UserError, match=message):
        run(name, *(override.format(tmp_path) for override in overrides))
    assert files(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize("made_by", [SYNTHETIC, EVENTS], ids=["rows", "events"])
def test_a_generated_dataset_of_an_older_version_is_compared_by_its_files(tmp_path: Path, made_by: list[str]) -> None:
    """Its manifest does not hold what generated it; its raw files may be gone."""
    set_up(tmp_path, *made_by)
    manifest = tmp_path / "out/manifest.json"
    document = json.loads(manifest.read_bytes())
    del document["extra"][made_by[0].removeprefix("data=")]
    manifest.write_text(json.dumps(document))
    for gone in (False, True):
        if gone:
            for path in (tmp_path / "out/raw").iterdir():
                path.unlink()
        before = files(tmp_path)
        run("data_prep", *made_by, f"data.path={tmp_path}/out")
        with pytest.raises(UserError, match="made from other raw files"):
            run("data_prep", *made_by, made_by[1].partition("=")[0] + "=31", f"data.path={tmp_path}/out")
        assert files(tmp_path) == before


def test_the_same_archive_is_found_done_though_what_was_unpacked_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up(tmp_path, *KAGGLE, "data.raw={0}/one.tar.gz")
    for path in (tmp_path / "out/raw").iterdir():
        path.unlink()
    before = files(tmp_path)
    run("data_prep", *KAGGLE, f"data.raw={tmp_path}/one.tar.gz", f"data.path={tmp_path}/out")
    assert "already done (70 rows)" in capsys.readouterr().err
    assert files(tmp_path) == before


def test_a_full_disk_leaves_another_job_s_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "day_0").write_bytes(oracle.make_rows(60, seed=0))
    work = tmp_path / "new/.work"
    (work / "chunks").mkdir(parents=True)
    (work / "job.json").write_text("another job's")
    (work / "chunks/00000-00000.parsed.json").write_text("{}")
    before = files(tmp_path)
    monkeypatch.setattr("common.disk_space.shutil.disk_usage", lambda path: SimpleNamespace(free=5))
    with pytest.raises(UserError, match="needed for the dataset"):
        run("data_prep", f"data.raw={tmp_path}/day_0", f"data.path={tmp_path}/new")
    assert {name for name in files(tmp_path) if not name.endswith("lock")} == set(before)


@pytest.mark.parametrize(
    "form", ["bin", *(pytest.param(form, marks=pytest.mark.slow) for form in ("npy", "multi_hot"))]
)
def test_an_export_that_fails_midway_leaves_the_older_one(tmp_path: Path, form: str) -> None:
    set_up(tmp_path, *DAYS, "data.dense_transform=integers", "data.max_ind_range=9")
    export = [f"data.path={tmp_path}/out", f"exchange.to={tmp_path}/new", f"exchange.format={form}"]
    run("interchange", *export)
    test = tmp_path / "out/test/00000.dense.npy"
    test.write_bytes(test.read_bytes()[:200])
    labels = tmp_path / "out/train/00000.labels.npy"
    np.save(labels, 1 - np.load(labels))
    before = files(tmp_path)
    with pytest.raises(UserError):
        run("interchange", *export)
    assert files(tmp_path) == before


# Keys that each command reads; of all others none is taken in silence.
READS = {
    "verify": {"data.path", "data.source"},  # which data=NAME sets beside it
    "interchange": {
        "data.path",
        "data.source",
        "data.dense_transform",
        *(key for key, *_ in keys_of(PrepConfig) if "exchange" in key),
    },
    "profile": {"locality.trace", "locality.profile", "locality.split"},
    "compare": {"locality.trace", "locality.other", "locality.split", "locality.plot"},
    "generate": {"locality.profile", "locality.to", "locality.accesses", "locality.seed"},
    "data_prep": {key for key, *_ in keys_of(PrepConfig) if key.startswith("data.")},
}


@pytest.mark.parametrize("name", READS)
def test_a_key_that_a_command_does_not_read_is_refused(tmp_path: Path, name: str) -> None:
    for key, owner, field, _ in keys_of(PrepConfig):
        if key in READS[name]:
            continue
        usual = getattr(owner(), field)
        prep_config = changed(
            PrepConfig(),
            {
                "exchange.to": str(tmp_path / "new") if name == "interchange" else None,
                "data.path": str(tmp_path / "none") if "data.path" in READS[name] else None,
                key: "another" if usual is None or isinstance(usual, (str, Enum)) else [usual],
            },
        )
        with pytest.raises(UserError, match=f"^{re.escape(key)}: has no effect on this command"):
            (COMMANDS | {"data_prep": prepare})[name](prep_config)


def test_a_transform_is_of_bin_imports_alone(tmp_path: Path) -> None:
    raw = ["data.dense_transform=raw", f"data.path={tmp_path}/new", f"exchange.source={tmp_path}"]
    with pytest.raises(UserError, match=r"^data\.dense_transform: has no effect"):
        run("interchange", *raw)
    with pytest.raises(UserError, match=r"terabyte_processed_train\.bin: no such file"):
        run("interchange", *raw, "exchange.format=bin")
    with pytest.raises(UserError, match="no dataset here"):  # a group in place of data.path
        run("verify", "data=criteo_1tb", f"data.path={tmp_path}")
