"""A bundle of a run: its record as one file, which is verified where there is nothing else."""

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from app.replay import CONTENTS, record_directory, write_bundle
from common.errors import UserError
from tests.app.conftest import SMALL, Command, Refusal
from tests.app.run_files import summary

GENERATED = ["data.source=synthetic", "data.synthetic.rows=1500", "data.path=data/day", "train.max_steps=12"]


@pytest.fixture
def run(run_app: Command, tmp_path: Path) -> Path:
    """A run with kept scores, on rows that are generated."""
    layout = ["train.deterministic=layout", "train.micro_batch_size=16"]
    run_app("train", *SMALL, *GENERATED, *layout, "run.name=x", "eval.keep_scores=500", processes=2)
    return tmp_path / "runs/x"


@pytest.mark.slow("processes")
def test_it_is_verified_where_there_is_nothing_else(run_app: Command, run: Path, tmp_path: Path) -> None:
    """The dataset is used where it is, and made again where it is not; rows of another seed are another dataset."""
    run_app("bundle", "run=runs/x", "out=x.bundle")
    shutil.rmtree(run)
    for is_gone in (False, True):
        if is_gone:
            shutil.rmtree(tmp_path / "data")
        report = json.loads(run_app("verify", "bundle=x.bundle").stdout)
        assert (report["verdict"], report["lacking"]) == ("identical", [])
        assert (report["run"], report["changed_since"]) == ("x.bundle", [])
    (made,) = (tmp_path / "data").iterdir()
    assert made.name.startswith("bundle-")


@pytest.mark.slow("processes")
def test_a_damaged_file_is_refused(
    run_app: Command, refused_command: Refusal, uninterrupted: Path, tmp_path: Path
) -> None:
    run_app("bundle", f"run={uninterrupted}", "out=x.bundle")
    with zipfile.ZipFile(tmp_path / "x.bundle") as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    expected = {f"run/{name}" for name in ("config.yaml", "manifest.json", "metrics.jsonl")}
    assert expected | {"dataset/manifest.json", "locks/train.lock", CONTENTS} <= {*content}
    content["run/metrics.jsonl"] += b" "
    with zipfile.ZipFile(tmp_path / "y.bundle", "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    assert "y.bundle: run/metrics.jsonl is damaged" in refused_command("verify", "bundle=y.bundle")
    assert summary(uninterrupted)["status"] == "completed"


def test_what_is_no_bundle_is_refused(refused_command: Refusal, tmp_path: Path) -> None:
    (tmp_path / "x.bundle").write_text("nothing")
    assert "x.bundle: not a bundle of a run" in refused_command("verify", "bundle=x.bundle")
    assert "no.bundle: not a bundle of a run" in refused_command("verify", "bundle=no.bundle")
    assert "has no effect beside run=runs/x" in refused_command("verify", "bundle=x.bundle", "run=runs/x")
    assert "run has no value; add run=" in refused_command("verify")
    with zipfile.ZipFile(tmp_path / "evil.bundle", "w") as archive:
        archive.writestr("../evil", b"")
        files = {"../evil": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
        archive.writestr(CONTENTS, json.dumps({"run": "x", "dataset": "0", "files": files}))
    with pytest.raises(UserError, match="no name of a file"), record_directory(None, str(tmp_path / "evil.bundle")):
        pass
    with pytest.raises(UserError, match="not a run's directory"):
        write_bundle(tmp_path, tmp_path / "out.bundle")
