"""The command line: what is asked for, misspelt, told by help and printed; signals; the digest of the modules."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common import cli
from common.cli import DIRECTORIES, ROOT, colour_text, outdated_sentence, sources_digest
from common.compose import compose_config
from common.files import format_bytes
from common.keys import MISSING, describe, key, keys_of, ready_made_groups
from tests.data_prep.conftest import REPOSITORY, Capture
from tests.error_lines import refused


class Colour(Enum):
    red = "red"
    blue = "blue"


@dataclass
class Inner:
    """A group."""

    width: int = key(3, "in metres")
    colour: Colour | None = None


@dataclass
class Outer:
    """All."""

    name: str = key(MISSING, "of the thing")
    inner: Inner = field(default_factory=Inner)


@pytest.fixture
def config_dir(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("defaults:\n  - schema\n  - _self_\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "wide.yaml").write_text("width: 9\n")
    return tmp_path


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("name=x inner.witdh=4", "did you mean inner.width?"),
        ("name=x innner.width=4", "did you mean inner.width?"),
        ("name=x zzz=1", "--help all lists the keys"),
        ("--name=x", "keys have no dashes; write name=x"),
        ("--name x", "keys have no dashes; write name=x"),
        ("--name inner.width=4", "keys have no dashes; write name=..."),
        ("inner.width=4", "name has no value; add name=..."),
        ("name=x inner.colour=green", "not one of red, blue; give one of these"),
    ],
)
def test_what_is_wrong_is_told_with_the_remedy(config_dir: Path, overrides: str, words: str) -> None:
    refused(re.escape(words), compose_config, Outer, config_dir, overrides.split())


def test_help_tells_values_choices_and_meanings(config_dir: Path) -> None:
    assert ready_made_groups(config_dir) == {"inner": ["wide"]}
    assert [key for key, *_ in keys_of(Outer)] == ["name", "inner.width", "inner.colour"]
    lines = list(describe(Outer(inner=Inner(9)), {"inner": ["wide"]}))
    result = [" ".join(line.split()) for line in lines]
    for line in ("inner: wide", "name=(must be given) # of the thing", "inner.width=9 # in metres"):
        assert line in result
    assert "inner.colour=null # red | blue" in result


@pytest.mark.medium
@pytest.mark.parametrize("module", ["app.doctor", "data_prep"])
def test_help_needs_nothing(module: str, tmp_path: Path) -> None:
    command, environment = [sys.executable, "-m", module, "--help"], {"PYTHONPATH": str(REPOSITORY), "PATH": ""}
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert "key=value" in process.stdout
    assert list(tmp_path.iterdir()) == []


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


def test_an_error_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise two processes that share a terminal write into each other's line."""
    output: list[str] = []
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=output.append))
    cli._print_error("x")
    assert output == ["error: x\n"]


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


@pytest.mark.parametrize("colour", [True, False])
def test_colour_is_for_terminals_that_want_it(colour: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("TERM", raising=False)
    if colour:
        monkeypatch.delenv("NO_COLOR", raising=False)
    else:
        monkeypatch.setenv("NO_COLOR", "1")
    assert colour_text("x", "red", Terminal()) == ("\x1b[31mx\x1b[0m" if colour else "x")  # type: ignore[arg-type]


SCRIPT = """
import ctypes, sys
from common.signals import discard_native_stdout

c = ctypes.CDLL(None)
c.puts(b"native before")
print("before")
with discard_native_stdout():
    c.puts(b"native meanwhile")
    print("python meanwhile", file=sys.stderr)
c.puts(b"native after")
print("after")
"""


def test_native_output_is_dropped_only_meanwhile() -> None:
    """Into a pipe: there C keeps its output until its buffer is full, or it is told not to."""
    process = subprocess.run([sys.executable, "-c", SCRIPT], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert sorted(process.stdout.splitlines()) == ["after", "before", "native after", "native before"]
    assert process.stderr == "python meanwhile\n"


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


BYTES = {0: "0 B", 999: "999 B", 1000: "1.0 kB", 999_949: "999.9 kB", 999_950: "1.0 MB", 15.3e9: "15.3 GB"}
BYTES |= {2.5e12: "2.5 TB", 1.2e15: "1,200.0 TB"}


def test_units_of_bytes_fit() -> None:
    assert {size: format_bytes(size) for size in BYTES} == BYTES


PROGRAM = """
import numpy as np
from data_prep.lookup import encode_hash
from common.jit import compile_notice

with compile_notice("the parser"):
    encode_hash(np.ones((1, 1), np.uint32), 2)
with compile_notice("nothing"):
    encode_hash(np.ones((1, 1), np.uint32), 2)
"""


@pytest.mark.slow("tool")
def test_compiling_is_told_once_and_loading_never(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    for expected in ("compiling the parser (once; the result is cached) ...\n", ""):
        process = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True)
        assert process.stderr == expected
