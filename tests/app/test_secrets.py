"""Secrets planted wherever a user may have them: in no byte of a run, a dataset or what is printed."""

import sys
from pathlib import Path

import pytest
import yaml

from app.commands import COMMANDS
from app.report.page import write_report
from common.cli import run_command
from tests.app.conftest import SMALL, Command
from tests.data_prep import oracle
from tests.data_prep.mirror import Mirror
from tests.error_lines import error_line

SECRET = "hunter2"
ENVIRONMENT = {
    "TORCH_TOKEN": SECRET,
    "CUDA_PASSWORD": SECRET,
    "CLICKWORK_SECRET": SECRET,
    "NCCL_DEBUG_TOKEN": SECRET,
    "GLOO_PROXY": f"http://user:{SECRET}@host",
    "WANDB_API_KEY": SECRET,
    "HTTPS_PROXY": f"http://user:{SECRET}@host",
}
ARGUMENTS = [f"published.hardware=http://user:{SECRET}@host/x", f"+environment.variables.TORCH_API_KEY={SECRET}"]
ARGUMENTS += [f"+environment.variables.GPU_URL='http://user:{SECRET}@host'", "checkpoint.every_steps=5"]


def planted(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


@pytest.mark.slow("processes")
def test_a_run_and_its_replay(run_app: Command, small: list[str], tmp_path: Path) -> None:
    overrides = [*small, "run.name=one", "train.max_steps=10", *ARGUMENTS]
    run_app("train", *overrides, environment=ENVIRONMENT)
    assert planted(tmp_path) == []
    config = yaml.safe_load((tmp_path / "runs/one/config.yaml").read_text())
    assert config["published"]["hardware"] == "http://***@host/x"
    verified = run_app("verify", "run=runs/one", environment=ENVIRONMENT)
    assert "verify: runs/one: identical" in verified.stderr
    assert "TORCH_TOKEN" not in verified.stderr  # masked then and now


@pytest.mark.parametrize(
    "override",
    [
        f"+environment.my_token={SECRET}",
        f"--proxy-password={SECRET}",
        f"environment.variables=http://user:{SECRET}@host",
        f"+environment.variables.MY_TOKEN={SECRET}(, a",
        f"+environment.variables={{MY_TOKEN: {SECRET}, 1x: 1}}",
        f"+data.remote.password={SECRET}",
        f"data.source=https://user:{SECRET}@host",
        f"run.dir=http://user:{SECRET}@host\nb",
        f"password={SECRET}",
    ],
)
def test_errors(
    override: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Checks that a training is refused without the secret of its argument, and writes nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["app.train", "run.name=x", "data.path=none", override])
    assert run_command(COMMANDS["train"]) == 2
    assert SECRET not in error_line(capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


check_error = test_errors  # by which extensions check their keys


def test_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["app.train", "--help", "all", *ARGUMENTS])
    assert run_command(COMMANDS["train"]) == 0
    assert SECRET not in capsys.readouterr().out


def test_the_report_of_an_older_run(uninterrupted: Path, tmp_path: Path) -> None:
    for name in ("config.yaml", "manifest.json", "summary.json", "metrics.jsonl"):
        (tmp_path / name).write_bytes((uninterrupted / name).read_bytes())
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    config["published"]["hardware"] = f"http://user:{SECRET}@host"
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"argv": [', f'"argv": [\n  "a=http://u:{SECRET}@host",', 1))
    assert SECRET not in write_report(tmp_path, tmp_path / "page.html").read_text()


@pytest.mark.slow("processes")
def test_a_mirror_s_login(run_app: Command, tmp_path: Path) -> None:
    mirror = Mirror()
    mirror.content["day_0.tsv"] = oracle.make_rows(400, seed=0)
    url = mirror.url("good/day_0.tsv").replace("//", f"//user:{SECRET}@")
    remote = f"{{name: day_0.tsv, mirrors: ['{url}'], member: null}}"
    keys = [*SMALL, "run.name=one", "data.source=criteo_kaggle", "data.path=days", "data.workers=1"]
    process = run_app("train", *keys, f"data.remote={remote}", "train.max_steps=2")
    assert "fetching http://127.0.0.1" in process.stderr
    assert any(login for _, _, login in mirror.logins)
    assert planted(tmp_path) == []
    mirror.shutdown()
