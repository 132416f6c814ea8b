"""The command line: what is asked for, misspelt, told by help and printed; signals; the digest of the modules."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from common import cli
from common.cli import DIRECTORIES, ROOT, outdated_sentence, sources_digest
from common.compose import compose_config
from tests.data_prep.conftest import REPOSITORY, Capture


@pytest.fixture
def config_dir(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("defaults:\n  - schema\n  - _self_\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "wide.yaml").write_text("width: 9\n")
    return tmp_path


@dataclass
class Texts:
    """Keys of texts, and others."""

    name: str = "x"
    directory: str | None = None
    hosts: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    further: dict[str, Any] = field(default_factory=dict)
    count: int = 0
    share: float = 0.0


@pytest.mark.parametrize(
    "text", ["2026_11_24", "2026_1_12", "1e3", "007", "2024", "1.50", "-0", "true", "Yes", "nan", "1_000.0", "inf", "x"]
)
def test_texts_are_taken_as_they_are_typed(config_dir: Path, text: str) -> None:
    keys = ("name", "directory", "variables.OMP")
    config = compose_config(Texts, config_dir, [f"{key}={text}" for key in keys] + [f"hosts=[{text},b]"])
    assert (config.name, config.directory, config.variables["OMP"], config.hosts[0]) == (text,) * 4


def test_numbers_are_numbers_and_null_is_none(config_dir: Path) -> None:
    overrides = ["count=1_000", "share=1e-3", "directory=null", "further.size=1e3", 'name="12"', "hosts=[a,'1e3']"]
    config = compose_config(Texts, config_dir, overrides)
    assert (config.count, config.share, config.directory, config.further["size"]) == (1000, 0.001, None, 1000.0)
    assert (config.name, config.hosts) == ("12", ["a", "1e3"])


@pytest.mark.parametrize("in_image", [False, True])
def test_a_path_outside_the_folders_is_told(monkeypatch: pytest.MonkeyPatch, capsys: Capture, in_image: bool) -> None:
    monkeypatch.setenv("CLICKWORK_BASE_DIGEST", "sha256:1" if in_image else "")
    cli._print_error("/srv/rows.tsv: No such file or directory")
    assert ("sees those in its data and runs folders alone" in capsys.readouterr().err) == in_image


@pytest.mark.slow("processes")
@pytest.mark.parametrize(("language", "charset"), [("zh_CN", "GBK"), ("de_DE", "ISO-8859-1")])
def test_a_locale_of_another_charset(language: str, charset: str, tmp_path: Path) -> None:
    """Files are UTF-8 there, too; characters that the charset lacks are replaced on a terminal."""
    locale = f"{language}.{charset}"
    subprocess.run(["localedef", "-i", language, "-f", charset, tmp_path / locale], capture_output=True, check=False)
    if not (tmp_path / locale).is_dir():
        pytest.skip("no localedef here, or not the sources of this locale")
    rows = "".join(f"{row % 2},Zoë ❄ {row % 7},{row}\n" for row in range(200))
    (tmp_path / "rows.csv").write_text(f"klick ❄,ort,preis\n{rows}", encoding="utf-8")
    (tmp_path / "schema.yaml").write_text("label: klick ❄\ndense: [preis]\nsparse: [ort]\n", encoding="utf-8")
    raw, data = f"data.raw={tmp_path}/rows.csv", f"data.path={tmp_path}/data"
    keys = [raw, f"data.schema={tmp_path}/schema.yaml", data, "run.name=x", f"run.dir={tmp_path}/run"]
    keys += ["train.max_steps=2", "baselines=false", "runtime.num_threads=1"]

    def run(*words: str) -> "subprocess.CompletedProcess[bytes]":
        environment = {**os.environ, "LOCPATH": str(tmp_path), "LC_ALL": locale, "PYTHONUTF8": "0"}
        command = [sys.executable, "-m", *words]
        return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, check=False)

    for words in (["app.train", *keys], ["data_prep.verify", data], ["data_prep", "--help"]):
        done = run(*words)
        assert done.returncode == 0, done.stderr.decode(charset)
    assert "data.workers=N]" in done.stdout.decode(charset)
    schema = json.loads((tmp_path / "data/manifest.json").read_text(encoding="utf-8"))["schema"]
    assert schema["label"] == "klick ❄"
    (tmp_path / "rows.csv").write_text(f"preis,klick ❄,ort\n{rows}", encoding="utf-8")
    (tmp_path / "other.yaml").write_text("label: preis\nsparse: [klick ❄]\n", encoding="utf-8")
    refusal = run("data_prep", raw, f"data.schema={tmp_path}/other.yaml", f"data.path={tmp_path}/other")
    assert refusal.returncode == 2
    assert "cannot name this file; set LC_ALL=C.UTF-8" in refusal.stderr.decode(charset)


LAUNCHER = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]]).wait()"
PROCESS = """
import os, time
from common import signals

signals.end_with_parent()
stop = signals.StopRequest("stopping", lambda: "nothing is saved")
print(os.getpid(), flush=True)
while not stop:
    time.sleep(0.01)
time.sleep(0.6)
print("ended in order", flush=True)
"""


@pytest.mark.medium
def test_a_launcher_s_end_that_is_reported_twice_is_one_request() -> None:
    """As the kernel does of a launcher with several threads, which end one after another."""
    command = [sys.executable, "-c", LAUNCHER, PROCESS]
    launcher = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    pid = int(launcher.stdout.readline())
    launcher.kill()
    time.sleep(0.2)
    os.kill(pid, signal.SIGTERM)
    assert launcher.stdout.readline() == "ended in order\n"
    launcher.wait()


@pytest.fixture
def image(tmp_path: Path) -> Path:
    for name in (name for name in DIRECTORIES if (ROOT / name).exists()):
        shutil.copytree(ROOT / name, tmp_path / "image" / name, ignore=shutil.ignore_patterns("*.yaml", "*.pyc"))
    return tmp_path / "image"


def edit(root: Path) -> None:
    with open(root / "common/errors.py", "a", encoding="utf-8") as file:
        file.write("\n")


def test_the_digest_is_of_the_modules_wherever_they_are(image: Path) -> None:
    assert sources_digest(image) == sources_digest(ROOT)
    edit(image)
    sources_digest.cache_clear()
    assert sources_digest(image) != sources_digest(ROOT)


def test_an_image_older_than_the_checkout_says_so(image: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    assert outdated_sentence(image, checkout) is None  # none is mounted
    shutil.copytree(image, checkout)
    assert outdated_sentence(image, checkout) is None
    edit(checkout)
    sources_digest.cache_clear()
    assert "--build" in str(outdated_sentence(image, checkout))
