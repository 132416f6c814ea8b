"""Single flipped bits anywhere in a checkpoint are damage, and damage is passed over for the one beside it."""

import hashlib
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.checkpoint import files
from app.checkpoint.saver import Saver
from app.checks.check import Verdict
from app.checks.files import check_run
from app.config import CheckpointConfig
from app.runtime.platform import Runtime
from app.training import resume, session
from app.training.state import RunState
from common.errors import UserError
from data_prep.dataset.format import load_manifest
from tests.app.conftest import SMALL, composed
from tests.app.run_files import rewrite_state


@pytest.fixture(scope="module")
def checkpoints(runtime: Runtime, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two."""
    config = composed(*SMALL, f"data.path={dataset}")
    this, root = session.build(config, runtime, dataset, load_manifest(dataset)), tmp_path_factory.mktemp("checkpoints")
    saver = Saver(root, keep=2, asynchronous=False, local_world_size=1)
    for step in (10, 20):
        saver.save(step, this.model, this.optimizer, resume.checkpoint_state(this, RunState(step=step), {}), best=False)
    saver.close()
    return root


@pytest.fixture
def newest(checkpoints: Path, tmp_path: Path) -> Path:
    """The newer of two checkpoints that a test may damage."""
    shutil.copytree(checkpoints, tmp_path / "checkpoints")
    return tmp_path / "checkpoints/step_00000020"


def flips(path: Path, count: int) -> Iterator[int]:
    """Flip single bits of a file in turn, drawn at random; the last one is flipped back."""
    content = path.read_bytes()
    for bit in sorted(random.Random(0).sample(range(8 * len(content)), min(count, 8 * len(content)))):
        corrupt_content = bytearray(content)
        corrupt_content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(corrupt_content)
        yield bit
    path.write_bytes(content)


def test_every_file_has_a_checksum(newest: Path) -> None:
    names = json.loads((newest / "state.json").read_bytes())["files"].keys()
    assert {path.name for path in newest.iterdir()} == {*names, "state.json", "state.json.sha256"}
    line = f"{hashlib.sha256((newest / 'state.json').read_bytes()).hexdigest()}  state.json\n"
    assert (newest / "state.json.sha256").read_text() == line


@pytest.mark.parametrize("name", ["state.json", "state.json.sha256", "arrays.npz", ".metadata", "__0_0.distcp"])
def test_a_flipped_bit_is_damage(name: str, newest: Path) -> None:
    """Of the two small files, of which nothing is hashed besides, many."""
    for bit in flips(newest / name, 3_000 if name.startswith("state") else 40):
        with pytest.raises(UserError, match=newest.name):
            files.verify(newest)
        if bit % 100 == 0:
            path, [reason] = files.newest_undamaged(newest.parent)
            assert path is not None
            assert path.name == "step_00000010"
            assert newest.name in reason
    files.verify(newest)


@pytest.mark.parametrize("name", ["state.json", "arrays.npz", ".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("length", [-1, 0, None])
def test_a_file_that_is_cut_short_or_gone_is_damage(name: str, length: int | None, newest: Path) -> None:
    content = (newest / name).read_bytes()
    (newest / name).unlink()
    if length is not None:
        (newest / name).write_bytes(content[:length])
    with pytest.raises(UserError, match=newest.name):
        files.verify(newest)
    assert files.newest_undamaged(newest.parent)[0] == newest.with_name("step_00000010")


def test_a_checkpoint_of_another_version_is_refused_and_kept(newest: Path) -> None:
    """Not passed over as damage is: a run would start over, and remove what another version can read."""
    rewrite_state(newest, {**json.loads((newest / "state.json").read_bytes()), "format": 2, "of_version_2": 1})
    with pytest.raises(UserError, match="format 2, and this version reads 3; use the version that wrote it"):
        files.choose(CheckpointConfig(), newest.parent)
    assert newest.exists()
    (newest.parent.parent / "manifest.json").write_text('{"format": "clickwork-run"}')
    check = check_run(newest.parent.parent)
    assert check.verdict is Verdict.fail
    assert "use the version that wrote it" in str(check.remedy)


def test_another_value_is_damage_though_it_reads_well(newest: Path, tmp_path: Path) -> None:
    state = (newest / "state.json").read_text()
    (tmp_path / "manifest.json").write_text('{"format": "clickwork-run"}')
    assert check_run(tmp_path).verdict is not Verdict.fail
    (newest / "state.json").write_text(state.replace('"step_in_epoch": 0', '"step_in_epoch": 1'))
    with pytest.raises(UserError, match=r"state.json: damaged \(it does not fit its checksum"):
        files.verify(newest)
    assert check_run(tmp_path).verdict is Verdict.fail
    (newest / "state.json.sha256").unlink()
    with pytest.raises(UserError, match=r"state.json: damaged \(state.json.sha256 is missing"):
        files.verify(newest)


@pytest.mark.parametrize("key", ["format", "files", "measured", "monitored"])
def test_a_state_without_a_key_is_damaged(key: str, newest: Path) -> None:
    state = json.loads((newest / "state.json").read_bytes())
    rewrite_state(newest, {name: value for name, value in state.items() if name != key})
    with pytest.raises(UserError, match=rf"state\.json: damaged \(key '{key}' is missing\); remove the checkpoint to"):
        files.verify(newest)


@pytest.mark.parametrize("pointer", [files.LATEST, files.BEST])
def test_a_pointer_that_is_no_text_points_to_nothing(pointer: str, newest: Path) -> None:
    (newest.parent / pointer).write_bytes(b"step_\xb00000020")
    assert files.pointed_to(newest.parent, pointer) is None
