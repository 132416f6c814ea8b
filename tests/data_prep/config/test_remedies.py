"""Every remedy that a message of data_prep prints is typed, and works."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.data_prep import oracle
from tests.data_prep.conftest import REPOSITORY, command, config, prepare, refused

OWN, CUSTOM = "data.raw=own.csv data.schema=own.yaml", "data.raw=own.csv"
DAY, DAYS = "data.raw=day_0", "data.raw=day_* data.split.method"
LARGE = "data.raw=large.csv data.schema=own.yaml"
# What is typed; what its message must have; what is typed next, of its groups.
REMEDIES: list[tuple[str, str, str | None]] = [
    ("data.rwa=day_0", r"did you mean (data\.raw)\?", "{0}=day_0"),
    ("raw=day_0", r"did you mean (data\.raw)\?", "{0}=day_0"),
    ("--data.raw=day_0", r"have no dashes; write (\S+)$", "{0}"),
    ("--raw=day_0", r"have no dashes; did you mean (data\.raw)\?", "{0}=day_0"),
    (DAY + " data.held_out=0.2", r"did you mean (data\.split\.held_out)\?", DAY + " {0}=0.2"),
    ("data.raw=7", r"""write '(data\.raw=\"7\")'""", None),
    ("data.raw=own.csv", r"name its columns in (data\.schema)=FILE", "data.raw=own.csv {0}=own.yaml"),
    (CUSTOM, r"name its columns in (data\.schema)=FILE", CUSTOM + " {0}=own.yaml"),
    ("data.source=synthetic " + OWN, r"name your own in data\.raw and leave out (data\.source)", OWN),
    (DAY + " data.encoding=hash", r"needs (data\.max_ind_range), .*e\.g\. (\d+)", DAY + " data.encoding=hash {0}={1}"),
    (OWN + " data.encoding=torchrec", "use (vocabulary) or hash", OWN + " data.encoding={0}"),
    (OWN + " data.dense_transform=torchrec", "use signed_log1p, (minmax) or raw", OWN + " data.dense_transform={0}"),
    (DAY + " data.split.method=last_day", "use (fraction), or add a day", DAY + " data.split.method={0}"),
    (f"{DAYS}=last_day data.split.held_out=0.5", "use (fraction), or leave it", DAYS + "={0} data.split.held_out=0.5"),
    (DAY + " data.memory_budget=lots", r"e\.g\. (512MiB), 2GiB", DAY + " data.memory_budget={0}"),
    (DAY + " data.chunk_bytes=1GiB", "give at most a 16th of it", DAY + " data.chunk_bytes=128MiB"),
    (LARGE + " data.dense_transform=raw", r"set (data\.dense_transform=signed_log1p);", LARGE + " {0}"),
    (DAY + " data.split.seed=3", "has no effect .* leave it out", DAY),
    (DAY + " data.source=criteo_1tb", r"or leave out (data\.source)", DAY),
]


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    for day in range(2):
        (tmp_path / f"day_{day}").write_bytes(oracle.make_rows(60, seed=day))
    for name, price in (("own", "1"), ("large", "1e39")):
        (tmp_path / f"{name}.csv").write_text("label,price,user\n" + f"1,{price},u\n0,2,v\n" * 30)
    (tmp_path / "own.yaml").write_text("label: label\ndense: [price]\nsparse: [user]\n")
    return tmp_path


@pytest.mark.parametrize(("bad", "message", "good"), REMEDIES)
def test_each_remedy(inputs: Path, monkeypatch: pytest.MonkeyPatch, bad: str, message: str, good: str | None) -> None:
    monkeypatch.chdir(inputs)
    match = re.search(message, refused(message, prepare, *bad.split(), "data.path=out"))
    assert match
    if good is not None:
        prepare(*good.format(*match.groups()).split(), "data.path=out")
        assert (inputs / "out/manifest.json").exists()


def test_another_dataset_is_replaced_as_the_message_says(inputs: Path) -> None:
    overrides = [f"data.raw={inputs}/day_0", f"data.path={inputs}/out"]
    prepare(*overrides)
    refused(r"or set (data\.overwrite=true)", prepare, *overrides, "data.dense_transform=raw")
    prepare(*overrides, "data.dense_transform=raw", "data.overwrite=true")


NAMES = ["数据 1.csv", "a(1).csv", "a=1,b.csv", "x,y.csv", "it's.csv", 'a"b.csv', "a#b!.csv", "[a].csv", "{a}.csv"]
NAMES += ["a&b;c.csv", "back\\slash(1).csv", "day[0].csv", "é.csv", "<b>.csv", "glob(x)"]


@pytest.mark.slow("processes")
@pytest.mark.parametrize("name", NAMES)
def test_paths_that_need_quotes(inputs: Path, name: str) -> None:
    """The error has the form to type, which a shell hands on as it should; all keys that take a path alike."""
    directory = inputs / f"dir {name}"
    directory.mkdir()
    (inputs / "own.csv").rename(directory / name)
    (inputs / "own.yaml").rename(directory / f"{name}.yaml")
    paths = {"raw": directory / name, "schema": directory / f"{name}.yaml", "path": directory / "out"}
    arguments = []
    for key, path in paths.items():
        line = refused("not readable without quotes; write ", config, f"data.{key}={path}")
        arguments.append(line.partition("; write ")[2])
    if name == NAMES[0]:
        shell = f"{shlex.join(command())} {' '.join(arguments)}"
        process = subprocess.run(shell, shell=True, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
        assert (directory / "out/manifest.json").exists()
    words = subprocess.check_output(f"printf '%s\\0' {' '.join(arguments)}", shell=True, text=True)
    data = config(*words.split("\0")[:-1])
    assert {key: getattr(data, key) for key in paths} == {key: str(path) for key, path in paths.items()}


def test_lists_of_such_paths() -> None:
    line = refused("write ", config, "data.raw=[a(1).csv,b.csv]")
    (word,) = shlex.split(line.partition("; write ")[2])
    assert config(word).raw == ["a(1).csv", "b.csv"]
