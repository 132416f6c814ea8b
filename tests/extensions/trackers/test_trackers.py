"""Views of a run in other tools, read back as those tools read them."""

from pathlib import Path

import pytest

from tests.app.conftest import SMALL, Command
from tests.app.test_secrets import SECRET, check_error


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
