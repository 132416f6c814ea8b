"""Views of a run in other tools, read back as those tools read them."""

import contextlib
import importlib.util
import random
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from app.metrics.documents import EvaluationEvent, TrainEvent
from extensions.trackers.keys import TrackersConfig
from extensions.trackers.prometheus import CONTENT_TYPE, Prometheus
from tests.app.conftest import SMALL, Command
from tests.app.test_secrets import SECRET, check_error
from tests.error_lines import refused
from tests.key_limits import Limits, check_limits


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
    refused(f"trackers.prometheus_port={port}: cannot listen", Prometheus, "127.0.0.1", port, "another")
    tracker.close(None)
    Prometheus("127.0.0.1", port, "next").close(None)


@pytest.mark.slow("processes")
def test_a_replay_is_shown_nowhere(run_app: Command, dataset: Path) -> None:
    """Another program listens at the port, so a replay that served its figures would end with an error."""
    port = free_port()
    run_app(
        "train", *SMALL, f"data.path={dataset}", "run.name=x", "train.max_steps=2", f"trackers.prometheus_port={port}"
    )
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        assert "runs/x: identical" in run_app("verify", "run=runs/x").stderr


@pytest.mark.parametrize(
    "override",
    [
        f"trackers.mlflow=http://user:{SECRET}@localhost:1",
        f"trackers.mlflow=http://user:{SECRET}/1@localhost:1",
        f"trackers.wandb=http://user:{SECRET}@host",
    ],
)
def test_a_secret_in_an_address_is_not_in_an_error(
    override: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_error(override, tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("key", ["mlflow", "wandb"])
def test_a_client_that_is_not_here_is_said_at_once(key: str, run_app: Command, tmp_path: Path) -> None:
    if importlib.util.find_spec(key) is not None:
        pytest.skip(f"the {key} package is here")
    process = run_app("train", *SMALL, "data.path=nowhere", "run.name=x", f"trackers.{key}=somewhere", status=2)
    assert (
        process.stderr == f"error: trackers.{key}=somewhere: the {key} package is not installed; "
        "install it, or leave this out\n"
    )
    assert not (tmp_path / "runs").exists()


def test_mlflow_goes_on_in_the_same_run(run_app: Command, dataset: Path, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow's client is not installed (it is optional)")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    for steps in (20, 40):
        run_app(
            "train", *SMALL, f"data.path={dataset}", "run.name=x", f"train.max_steps={steps}", f"trackers.mlflow={uri}"
        )
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("clickwork").experiment_id])
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [metric.step for metric in history] == list(range(1, 41))


PORT: Limits = ([0, 65536], [1, 65535], "at least 1 and at most 65535")


def test_every_key_has_its_limits_and_a_meaning() -> None:
    check_limits(TrackersConfig, {"prometheus_port": PORT})
