"""`python -m app.verify` tells a run that replays from one that does not, and where; bundles of runs."""

import hashlib
import io
import json
import re
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.distributed.checkpoint import FileSystemReader

from app.replay import CONTENTS, record_directory, write_bundle
from app.runtime.platform import Runtime
from common.errors import UserError
from tests.app.conftest import REPOSITORY, SMALL, Command, Refusal, Train
from tests.app.in_process import command_here
from tests.app.run_files import rewrite_state
from tests.error_lines import refused

Verify = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture
def verified(run_app: Command) -> Verify:
    """Return what is reported of runs/run, and what is printed."""

    def verify(*overrides: str, **keywords: Any) -> tuple[dict[str, Any], str]:
        process = run_app("verify", *(overrides or ("run=runs/run",)), **keywords)
        return json.loads(process.stdout), process.stderr

    return verify


@pytest.mark.medium
def test_another_learning_rate_is_found(run_app: Command, verified: Verify, small: list[str], tmp_path: Path) -> None:
    run_app("train", *small, "run.name=run", "train.max_steps=20")
    path = tmp_path / "runs/run/config.yaml"
    config = yaml.safe_load(path.read_text())
    config["optimizer"]["lr"] *= 1.5
    path.write_text(yaml.safe_dump(config))
    report, err = verified(status=1)
    assert (report["verdict"], report["tensors_at_step"]) == ("different", 20)
    assert report["losses"]["first_step"] == 2  # the first loss comes before the first update
    assert "losses differ from step 2 on" in err
    assert set(report["tensors"]) >= {"t_cat_0", "over_arch.0.weight", "optimizer's t_cat_0.momentum1"}
    assert next(iter(report["tensors"])) == "t_cat_0"
    assert len(report["tensors"]["t_cat_0"]["first_element"]) == 2


@pytest.mark.slow("processes")
def test_the_first_difference_is_named(run_app: Command, verified: Verify, small: list[str], tmp_path: Path) -> None:
    """Somebody changed one value of one table in the checkpoint of step 20, sums and all; steps 10 and 30 are whole."""
    overrides = [*small, "run.name=run", "train.max_steps=30", "checkpoint.every_steps=10"]
    overrides += ["checkpoint.keep=9", "checkpoint.keep_best=false", "optimizer=sgd"]
    run_app("train", *overrides)
    change_one_value(tmp_path / "runs/run/checkpoints/step_00000020")
    report, err = verified(status=1)
    assert (report["compared_at"], report["losses"], report["tensors_at_step"]) == ([10, 20, 30], None, 20)
    assert list(report["tensors"]) == ["t_cat_2"]
    assert report["tensors"]["t_cat_2"]["first_element"] == [7, 3]
    assert "at step 20 (of the checkpoints, 10, 20, 30) the first tensor that differs is t_cat_2" in err


def change_one_value(checkpoint: Path) -> None:
    """Add 1 to element [7, 3] of the table of cat_2, in place, and make the sums of files good again."""
    storage = FileSystemReader(checkpoint).read_metadata().storage_data
    (info,) = [storage[each] for each in storage if re.fullmatch(r"model\..*\.t_cat_2\.weight", each.fqn)]
    file = checkpoint / info.relative_path
    content = bytearray(file.read_bytes())
    tensor = torch.load(io.BytesIO(content[info.offset : info.offset + info.length]), weights_only=True)
    raw = tensor.numpy().tobytes()
    at = content.index(raw) + 4 * (7 * tensor.shape[1] + 3)
    content[at : at + 4] = struct.pack("<f", float(tensor[7, 3]) + 1)
    file.write_bytes(content)
    state = json.loads((checkpoint / "state.json").read_bytes())
    state["files"][file.name]["sha256"] = hashlib.sha256(content).hexdigest()
    rewrite_state(checkpoint, state)


@pytest.mark.medium
def test_the_golden_run_replays(verified: Verify) -> None:
    """To the bit on the kind of machine and stack that made it (`make golden`), within the tolerance elsewhere."""
    golden = REPOSITORY / "tests/golden"
    report, err = verified(f"run={golden}/run", f"data.path={golden}/data")
    assert (report["steps"], report["compared_at"]) == (24, [])
    assert report["evaluation"].keys() == {"logloss", "auc"}
    elsewhere = [line for line in report["changed_since"] if line.startswith(("versions ", "hardware cpu"))]
    assert report["verdict"] == "identical" or elsewhere, err
    assert report["largest_difference"] < 1e-4


TO_14, SAVED = "train.max_steps=14", "checkpoint.every_steps=4"
ANOTHER = f"{TO_14} train.eval_every_steps=3 train.log_every_steps=2 eval.train_split=true"
FRACTIONS = "train.eval_every_steps=null train.eval_every_fraction=0.3"
# Of each part of a run what ends it (a stop or a kill at a step, or its status), and its overrides.
QUICK = {
    "stopped beside an evaluation": [f"stop:10 {TO_14}"],
    "killed and resumed": [*(f"kill:{step} {TO_14} {SAVED}" for step in (5, 11, 12)), f"completed {TO_14} {SAVED}"],
    "extended by another schedule": ["completed train.max_steps=7", f"stop:9 {ANOTHER}", f"completed {ANOTHER}"],
    "begun with another's steps": [
        "completed train.max_steps=6 run.name=y run.dir=y",
        f"completed {TO_14} checkpoint.resume=y",
    ],
}
SLOW = {
    "stopped and resumed beside an evaluation": [f"stop:10 {TO_14}", f"completed {TO_14}"],
    "killed for good": [f"kill:12 {TO_14} checkpoint.every_steps=3"],
    "target reached": [f"target_reached {TO_14} train.target_auc=0.01"],
    "without evaluations": ["completed train.max_steps=9 train.eval_every_steps=null checkpoint.keep_best=false"],
    "of fractions": [f"completed {FRACTIONS} train.max_steps=40 schedule=plateau train.early_stop_patience=9"],
}


@pytest.mark.medium
@pytest.mark.parametrize("course", [*QUICK, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)])
def test_any_course_replays(course: str, train: Train, runtime: Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    for part in {**QUICK, **SLOW}[course]:
        end, *overrides = part.split()
        status = {"stop": "interrupted", "kill": "killed"}.get(end.partition(":")[0], end)
        base = ["run.dir=x", "train.log_every_steps=4", "train.eval_every_steps=5"]
        train(*base, *overrides, fault=end if ":" in end else "", status=status)
    capsys.readouterr()
    assert command_here(runtime, "verify", "run=x") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["figures"]) == ("identical", [])


GENERATED = ["data.source=synthetic", "data.synthetic.rows=1500", "data.path=data/day", "train.max_steps=12"]


@pytest.fixture
def run(run_app: Command, tmp_path: Path) -> Path:
    """A run with kept scores, on rows that are generated."""
    run_app("train", *SMALL, *GENERATED, "run.name=x", "eval.keep_scores=500")
    return tmp_path / "runs/x"


@pytest.mark.slow("processes")
def test_it_is_verified_where_there_is_nothing_else(run_app: Command, run: Path, tmp_path: Path) -> None:
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
    refused("not a run's directory", write_bundle, tmp_path, tmp_path / "out.bundle")
