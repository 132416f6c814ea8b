"""Command lines of any keys and values; secrets planted wherever a user may have them: in no byte of what is left."""

import os
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.commands import COMMANDS
from app.config.app_config import CONFIG_DIR, AppConfig
from common.cli import EXIT_BAD_INPUT, EXIT_DONE, EXIT_STOPPED, run_command
from common.extensions import load
from common.keys import choices, keys_of, ready_made_groups
from data_prep.dataset.options import DataSource
from tests.app.conftest import Command
from tests.error_lines import error_line
from tests.forks import run_module

SECRET = "hunter2"
ENVIRONMENT = dict.fromkeys(("TORCH_TOKEN", "CUDA_PASSWORD", "CLICKWORK_SECRET", "NCCL_DEBUG_TOKEN"), SECRET)
ENVIRONMENT |= dict.fromkeys(("GLOO_PROXY", "HTTPS_PROXY"), f"http://user:{SECRET}@host")
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
        f"environment.variables=http://user:{SECRET}@host",
        f"+environment.variables={{MY_TOKEN: {SECRET}, 1x: 1}}",
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


EXAMPLES = int(os.environ.get("CLICKWORK_FUZZ_EXAMPLES", "30"))
FUZZ = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
SECRETS = [f"http://user:{SECRET}@127.0.0.1:1/x", f"s3://{SECRET}@b/'", f"{{MY_TOKEN: {SECRET}}}"]
VALUES = ["", "null", "-1", "0", "1", "2", "0.5", "1000", "1e308", "-1e308", "nan", "inf", "true", "[]", "[1]", "[2,1]"]
VALUES += ["[a]", "[null]", "{}", "{a: 1}", "{a: {b: 1}}", "x", "a b", "'a b'", "..", "../x", "/", "/dev/null"]
VALUES += ["/proc/x/y", "数据", "a\nb", "\x1b[31m", "'", '"', "[", "${oc.env:HOME}", "${run.name}", "${nothing}", "???"]
VALUES += ["1_000", "0x10", "-", "x" * 300, "auto", "best", "latest", *SECRETS]
NAMES = tuple(source.name for source in DataSource)
# Values that would take long, or ask the network, are left out; whatever is asked for, two steps are trained.
SLOW = {"data.path": ("null",), "data.source": NAMES, "data.default_source": NAMES}
LAST = ["train.max_steps=2", "record.tensorboard=false"]
KINDS = {key: kind for key, _, _, kind in keys_of(AppConfig)}
MORE_KEYS = ["environment.variables.X_TOKEN", "model.tables.overrides.cat_0", "sharding.tables.cat_0.types"]
MORE_KEYS += ["data.split.seed", "data.remote", "tiny.x", "nothing.x", "run", "data", "train", "@x", "a=b", ""]


@st.composite
def override(draw: st.DrawFn, keys: list[str]) -> str:
    """One argument: a key with a value of its own or of anybody's, a group with a name, or anything."""
    how = draw(st.integers(0, 9))
    if how == 0:
        return draw(st.text("ab=.-+~{}[]'\"\\ ,:$\n数\x1b", max_size=8))
    if how == 1:
        groups = ready_made_groups(CONFIG_DIR)
        group = draw(st.sampled_from(sorted(groups)))
        return f"{group}={draw(st.sampled_from([*groups[group], 'x', '']))}"
    key = draw(st.sampled_from(keys))
    values = [*choices(KINDS.get(key)) * 5, *VALUES]
    value = draw(st.sampled_from([value for value in values if value not in SLOW.get(key, ())]))
    sign = draw(st.sampled_from(["", "", "", "", "", "+", "++", "~", "--"]))
    return f"{sign}{key}={value}" if sign != "~" else f"~{key}"


def check(command: str, arguments: list[str], cwd: Path, other_roots: tuple[Path, ...] = ()) -> int:
    process = run_module(f"app.{command}", *arguments, cwd=cwd)
    status, out, err = process.returncode, process.stdout, process.stderr
    about = f"{command} {arguments}: {status}\n{err}"
    stops = any("max_minutes" in argument for argument in arguments)
    assert status in ((EXIT_DONE, EXIT_BAD_INPUT, EXIT_STOPPED) if stops else (EXIT_DONE, EXIT_BAD_INPUT)), about
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == (status == EXIT_BAD_INPUT), about
    assert status != EXIT_BAD_INPUT or err.splitlines()[-1].startswith(("error: ", "report: ")), about
    assert "Traceback" not in err, about
    assert SECRET not in out + err, about
    for path in [path for root in (cwd, *other_roots) for path in root.rglob("*") if path.is_file()]:
        assert not path.name.endswith((".part", ".tmp")), f"{about}{path}"
        assert SECRET.encode() not in path.read_bytes(), f"{about}{path}"
    return status


@pytest.mark.slow("examples")
@FUZZ
@given(arguments=st.lists(override([*KINDS, *MORE_KEYS]), min_size=1, max_size=3))
def test_train(arguments: list[str], small: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        cwd = Path(name) / "cwd"
        cwd.mkdir()
        check("train", [*small, *arguments, *LAST], cwd, (Path(name),))


READERS = {"evaluate": ["split=val"], "recommend": ["candidates=c.csv"], "verify": []}


@pytest.mark.slow("processes")
@FUZZ
@given(data=st.data())
def test_commands_that_read(data: st.DataObject, uninterrupted: Path) -> None:
    command = data.draw(st.sampled_from(sorted(READERS)))
    keys = [key for key, *_ in keys_of(load(COMMANDS[command].schema or ""))]
    arguments = data.draw(st.lists(override([*keys, *MORE_KEYS]), min_size=1, max_size=3))
    base = [*READERS[command], f"run={uninterrupted}", "runtime.platform=cpu"]
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "c.csv").write_text("cat_0,cat_1\n1,2\n")
        check(command, [*base, *arguments], Path(name))
