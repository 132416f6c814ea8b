"""Whatever happens to a checkpoint's files, it is noticed; which one evaluate, recommend and export take."""

import hashlib
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.checkpoint import files
from app.checkpoint.files import checkpoint_name, find_checkpoint, point_to_best, whole_checkpoints
from app.checkpoint.saver import Saver
from app.config.train import CheckpointConfig, RuntimeConfig
from app.runtime.platform import Runtime
from app.training import checkpointer
from app.training.state import RunState
from common.errors import UserError
from tests.app.conftest import Command, built
from tests.app.run_files import rewrite_state


@pytest.fixture(scope="module")
def checkpoints(runtime: Runtime, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two."""
    this, root = built(runtime, dataset), tmp_path_factory.mktemp("checkpoints")
    saver = Saver(root, keep=2, asynchronous=False, local_world_size=1)
    for step in (10, 20):
        saver.save(
            step, this.model, this.optimizer, checkpointer.checkpoint_state(this, RunState(step=step), {}), best=False
        )
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


@pytest.mark.medium
def test_every_file_has_a_checksum(newest: Path) -> None:
    names = json.loads((newest / "state.json").read_bytes())["files"].keys()
    assert {path.name for path in newest.iterdir()} == {*names, "state.json", "state.json.sha256"}
    line = f"{hashlib.sha256((newest / 'state.json').read_bytes()).hexdigest()}  state.json\n"
    assert (newest / "state.json.sha256").read_text() == line


@pytest.mark.medium
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


@pytest.mark.medium
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


@pytest.mark.medium
def test_a_checkpoint_of_another_version_is_refused_and_kept(newest: Path) -> None:
    """Not passed over as damage is: a run would start over, and remove what another version can read."""
    rewrite_state(newest, {**json.loads((newest / "state.json").read_bytes()), "format": 2, "of_version_2": 1})
    with pytest.raises(UserError, match="format 2, and this version reads 3; use the version that wrote it"):
        files.choose(CheckpointConfig(), newest.parent)
    assert newest.exists()


@pytest.mark.medium
def test_another_value_is_damage_though_it_reads_well(newest: Path, tmp_path: Path) -> None:
    state = (newest / "state.json").read_text()
    (newest / "state.json").write_text(state.replace('"step_in_epoch": 0', '"step_in_epoch": 1'))
    with pytest.raises(UserError, match=r"state.json: damaged \(it does not fit its checksum"):
        files.verify(newest)
    (newest / "state.json.sha256").unlink()
    with pytest.raises(UserError, match=r"state.json: damaged \(state.json.sha256 is missing"):
        files.verify(newest)


@pytest.mark.medium
@pytest.mark.parametrize("key", ["format", "files", "measured", "monitored"])
def test_a_state_without_a_key_is_damaged(key: str, newest: Path) -> None:
    state = json.loads((newest / "state.json").read_bytes())
    rewrite_state(newest, {name: value for name, value in state.items() if name != key})
    with pytest.raises(UserError, match=rf"state\.json: damaged \(key '{key}' is missing\); remove the checkpoint to"):
        files.verify(newest)


@pytest.mark.medium
@pytest.mark.parametrize("pointer", [files.LATEST, files.BEST])
def test_a_pointer_that_is_no_text_points_to_nothing(pointer: str, newest: Path) -> None:
    (newest.parent / pointer).write_bytes(b"step_\xb00000020")
    assert files.pointed_to(newest.parent, pointer) is None


@pytest.fixture
def run(uninterrupted: Path, tmp_path: Path) -> Path:
    """A run of two checkpoints, of steps 48 and 60, of which the first is the best."""
    copy = tmp_path / "runs/x"
    shutil.copytree(uninterrupted, copy)
    checkpoints = copy / "checkpoints"
    assert {path.name for path in whole_checkpoints(checkpoints)} >= {checkpoint_name(48), checkpoint_name(60)}
    point_to_best(checkpoints, checkpoint_name(48))
    return copy


@pytest.mark.medium
@pytest.mark.parametrize(
    ("choice", "step"), [(None, 48), ("best", 48), ("last", 60), ("latest", 60), ("60", 60), ("48", 48)]
)
def test_each_name_has_its_checkpoint(run: Path, choice: str | None, step: int) -> None:
    assert find_checkpoint(run, choice) == str(run / "checkpoints" / checkpoint_name(step))


@pytest.mark.medium
def test_a_path_is_one_too_wherever_it_lies(run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "kept"
    shutil.copytree(run / "checkpoints" / checkpoint_name(60), elsewhere)
    assert find_checkpoint(run, str(elsewhere)) == str(elsewhere)


@pytest.mark.medium
def test_without_a_best_it_is_the_last(run: Path) -> None:
    point_to_best(run / "checkpoints", None)
    assert Path(find_checkpoint(run, None)).name == checkpoint_name(60)
    with pytest.raises(UserError, match=r"^checkpoint=best: .*keeps none .* use checkpoint=last"):
        find_checkpoint(run, "best")


@pytest.mark.medium
def test_a_damaged_best_is_skipped_and_refused_by_name(run: Path, logged: pytest.LogCaptureFixture) -> None:
    (run / "checkpoints/step_00000048/state.json").write_bytes(b"{")
    assert Path(find_checkpoint(run, None)).name == checkpoint_name(60)
    assert "skipped the best" in logged.text
    for choice in ("best", "48"):
        with pytest.raises(UserError, match="damaged"):
            find_checkpoint(run, choice)


@pytest.mark.medium
@pytest.mark.parametrize("choice", ["7", "600"])
def test_a_step_without_one_is_refused_with_those_there_are(run: Path, choice: str) -> None:
    with pytest.raises(UserError, match=rf"^checkpoint={choice}: .* has no checkpoint of this step; .*48, 60$"):
        find_checkpoint(run, choice)


@pytest.mark.medium
def test_the_choice_is_logged(run: Path, runtime: Runtime, logged: pytest.LogCaptureFixture) -> None:
    config = checkpointer.trained_config(run, RuntimeConfig(), None)
    checkpoint = checkpointer.open_checkpoint(run, None, config.data.path, runtime)
    checkpoint.log_chosen_checkpoint()
    assert checkpoint.about == {"checkpoint": checkpoint_name(48), "step": 48, "best": True, "last": False}
    assert "step_00000048, step 48, the best of the run; the last is step_00000060 (checkpoint=last)" in logged.text


@pytest.mark.medium
def test_a_command_s_json_says_which_it_took(run: Path, run_app: Command) -> None:
    for overrides, step in (([], 48), (["checkpoint=60"], 60)):
        process = run_app("evaluate", f"run={run}", "split=val", *overrides)
        about = json.loads(process.stdout)
        assert (about["step"], about["best"], about["last"]) == (step, step == 48, step == 60)
