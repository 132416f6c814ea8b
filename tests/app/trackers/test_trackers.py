"""Views of a run for other tools, read back as those tools read them."""

import contextlib
import importlib.util
import json
import random
import re
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from app.config import CONFIG_DIR, AppConfig
from app.metrics.documents import EvaluationEvent, TrainEvent, decode_event
from app.trackers.base import settings
from app.trackers.prometheus import CONTENT_TYPE, Prometheus
from app.trackers.tensorboard import TensorBoard
from common.compose import compose_config
from common.errors import UserError
from common.keys import to_plain
from tests.app.conftest import SMALL, Command, ended, forked


def events(run: Path, kind: str) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]


def board(run: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "histograms": 0})
    accumulator.Reload()
    return accumulator


def assert_board_shows(run: Path) -> None:
    """Every figure of metrics.jsonl once, and nothing else."""
    accumulator = board(run)
    for tag, kind, key in (
        ("train/loss", "train", "loss"),
        ("train/accuracy", "train", "accuracy"),
        ("eval/auc", "eval", "auc"),
        ("train/lr", "train", "lr"),
    ):
        expected = [(event["step"], event[key]) for event in events(run, kind)]
        points = [(event.step, event.value) for event in accumulator.Scalars(tag)]
        assert [step for step, _ in points] == [step for step, _ in expected], tag
        assert [value for _, value in points] == pytest.approx([value for _, value in expected], rel=1e-6), tag
    for tag in ("eval/probabilities of clicks", "eval/probabilities of no clicks"):
        assert [event.step for event in accumulator.Histograms(tag)] == [event["step"] for event in events(run, "eval")]


@pytest.mark.slow
def test_tensorboard_shows_a_killed_and_resumed_run_once(run_app: Command, dataset: Path, tmp_path: Path) -> None:
    overrides = [*SMALL, f"data.path={dataset}", "run.name=board", "checkpoint.every_steps=20"]
    overrides += ["train.eval_every_steps=20"]
    run = tmp_path / "runs/board"
    killed = ended(forked("train", *overrides, "train.max_steps=70", cwd=tmp_path, fault="in the step:47"), tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert max(event["step"] for event in events(run, "train")) > 40  # these steps come again
    process = run_app("train", *overrides, "train.max_steps=70")
    assert "resume: from" in process.stderr
    assert_board_shows(run)
    run_app("train", *overrides, "train.max_steps=25", "checkpoint.resume=never", "checkpoint.overwrite=true")
    assert_board_shows(run)


def test_tensorboard_has_every_number_of_every_event_and_begins_with_evaluations(tmp_path: Path) -> None:
    """As the lines of metrics.jsonl have them, nested ones too; read by TensorBoard's own program."""
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
    expected = {
        "eval/auc": 0.75,
        "eval/ne": 0.5,
        "eval/eval_samples": 7,
        "train/loss": 0.7,
        "train/lr": 0.1,
        "train/device_bytes": 8,
        "train/phase_seconds/forward": 0.25,
        "train/phase_seconds/backward": 0.5,
        "train/phase_seconds/optimizer": 0.125,
        "various/checkpoint/stall_seconds": 0.25,
        "various/train/measured/steps": 4,
        "various/train/measured/joules": 2,
    }
    assert {tag: value for tag, value in scalars.items() if value} == pytest.approx(expected)
    assert not any(scalars[tag] for tag in scalars.keys() - expected.keys())  # sums of what was not measured are 0
    assert min(scalars).startswith("eval/")


def test_hyper_parameters_are_flat_and_of_simple_types() -> None:
    flat = settings(to_plain(compose_config(AppConfig, CONFIG_DIR, ["optimizer.lr=0.5"])), 2)
    assert flat["optimizer.lr"] == 0.5
    assert flat["world_size"] == 2
    assert all(isinstance(value, (str, int, float, bool)) for value in flat.values())


def free_port() -> int:
    """Below those that the system gives to whoever asks for any: nobody else takes it before or between."""
    for port in random.sample(range(15_000, 30_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


def test_prometheus_serves_the_newest_figures_and_lets_the_port_go() -> None:
    port = free_port()
    tracker = Prometheus("127.0.0.1", port, 'a "run"')
    window = TrainEvent(event="train", step=10, samples=640, loss=0.7, epoch=0, device_bytes=None, rest={"path": "x"})
    tracker.event(window)
    tracker.event(EvaluationEvent(event="eval", step=10, samples=640, auc=0.75, split="val"))
    tracker.event(TrainEvent(event="train", step=20, samples=1280, loss=0.5))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as response:
        assert response.headers["Content-Type"] == CONTENT_TYPE
        text = response.read().decode()
    # The text exposition format's own grammar: name{label="value"} number, each with its type before it.
    line = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{run="a \\"run\\""\} ([-+.e0-9]+)')
    samples = {match[1]: match[2] for match in map(line.fullmatch, text.splitlines()) if match}
    assert float(samples["clickwork_train_loss"]) == 0.5
    assert float(samples["clickwork_eval_auc"]) == 0.75
    assert (float(samples["clickwork_step"]), float(samples["clickwork_samples"])) == (20, 1280)
    assert len(text.splitlines()) == 2 * len(samples)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=120)
    with pytest.raises(UserError, match=f"record.prometheus_port={port}: cannot listen"):
        Prometheus("127.0.0.1", port, "another")
    tracker.close(None)
    Prometheus("127.0.0.1", port, "next").close(None)


@pytest.mark.parametrize("key", ["mlflow", "wandb"])
def test_a_client_that_is_not_here_is_said_at_once(key: str, run_app: Command, tmp_path: Path) -> None:
    if importlib.util.find_spec(key) is not None:
        pytest.skip(f"the {key} package is here")
    process = run_app("train", *SMALL, "data.path=nowhere", "run.name=x", f"record.{key}=somewhere", status=2)
    assert (
        process.stderr == f"error: record.{key}=somewhere: the {key} package is not installed; "
        "install it, or leave this out\n"
    )
    assert not (tmp_path / "runs").exists()


def test_mlflow_goes_on_in_the_same_run(run_app: Command, dataset: Path, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow's client is not installed (it is optional)")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    for steps in (20, 40):
        run_app(
            "train", *SMALL, f"data.path={dataset}", "run.name=x", f"train.max_steps={steps}", f"record.mlflow={uri}"
        )
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("clickwork").experiment_id])
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [metric.step for metric in history] == list(range(1, 41))
