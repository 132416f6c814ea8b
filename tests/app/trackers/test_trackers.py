"""Views of a run for other tools, read back as those tools read them."""

import signal
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from app.metrics.documents import decode_event
from app.trackers import TensorBoard, flat_settings
from common.keys import to_plain
from tests.app.conftest import Command, composed
from tests.app.run_files import events


def board(run: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "histograms": 0})
    accumulator.Reload()
    return accumulator


def assert_board_shows(run: Path) -> None:
    """Every figure of metrics.jsonl once, and nothing else."""
    accumulator = board(run)
    for tag in ("train/loss", "train/accuracy", "eval/auc", "train/lr"):
        kind, key = tag.split("/")
        expected = [(event["step"], event[key]) for event in events(run, kind)]
        points = [(event.step, event.value) for event in accumulator.Scalars(tag)]
        assert [step for step, _ in points] == [step for step, _ in expected], tag
        assert [value for _, value in points] == pytest.approx([value for _, value in expected], rel=1e-6), tag
    for tag in ("eval/probabilities of clicks", "eval/probabilities of no clicks"):
        assert [event.step for event in accumulator.Histograms(tag)] == [event["step"] for event in events(run, "eval")]


@pytest.mark.slow("processes")
def test_tensorboard_shows_a_killed_and_resumed_run_once(run_app: Command, small: list[str], tmp_path: Path) -> None:
    overrides = [*small, "run.name=board", "checkpoint.every_steps=20", "train.eval_every_steps=20"]
    run = tmp_path / "runs/board"
    run_app("train", *overrides, "train.max_steps=70", fault="in the step:47", status=-signal.SIGKILL)
    assert max(event["step"] for event in events(run, "train")) > 40  # these steps come again
    assert "resume: from" in run_app("train", *overrides, "train.max_steps=70").stderr
    assert_board_shows(run)
    run_app("train", *overrides, "train.max_steps=25", "checkpoint.resume=never", "checkpoint.overwrite=true")
    assert_board_shows(run)


def test_tensorboard_has_every_number_of_every_event_and_begins_with_evaluations(tmp_path: Path) -> None:
    lines = [
        b'{"event": "checkpoint", "step": 5, "samples": 50, "seconds": 0.5, "stall_seconds": 0.25, "path": "x"}',
        b'{"event": "train", "step": 10, "samples": 99, "loss": 0.7, "lr": 0.1, "device_bytes": 8, '
        b'"phase_seconds": {"forward": 0.25, "backward": 0.5, "optimizer": 0.125}, "watts": null, '
        b'"measured": {"steps": 4, "joules": 2}}',
        b'{"event": "eval", "step": 10, "samples": 99, "auc": 0.75, "ne": 0.5, "eval_samples": 7, "split": "val"}',
    ]
    tracker = TensorBoard(tmp_path / "tensorboard", {"lr": 0.1}, 0)
    for line in lines:
        tracker.event(decode_event(line))
    tracker.close(None)
    accumulator = board(tmp_path)
    scalars = {tag: accumulator.Scalars(tag)[0].value for tag in accumulator.Tags()["scalars"]}
    expected = {"eval/auc": 0.75, "eval/ne": 0.5, "eval/eval_samples": 7, "train/loss": 0.7, "train/lr": 0.1}
    expected |= {"train/phase_seconds/forward": 0.25, "train/phase_seconds/backward": 0.5, "train/device_bytes": 8}
    expected |= {"train/phase_seconds/optimizer": 0.125, "various/checkpoint/stall_seconds": 0.25}
    expected |= {"various/train/measured/steps": 4, "various/train/measured/joules": 2}
    assert {tag: value for tag, value in scalars.items() if value} == pytest.approx(expected)
    assert not any(scalars[tag] for tag in scalars.keys() - expected.keys())  # sums of what was not measured are 0
    assert min(scalars).startswith("eval/")


def test_hyper_parameters_are_flat_and_of_simple_types() -> None:
    flat = flat_settings(to_plain(composed("optimizer.lr=0.5")), 2)
    assert (flat["optimizer.lr"], flat["world_size"]) == (0.5, 2)
    assert all(isinstance(value, (str, int, float, bool)) for value in flat.values())
