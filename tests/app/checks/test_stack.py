"""Packages that do not belong together, or do not run, are reported; those that do, pass."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from app.checks import stack
from app.checks.check import Verdict
from tests.app.conftest import REPOSITORY

OTHERS = (*stack.USED, "numpy", "hydra-core", "omegaconf", "numba", "tqdm", "isal", "pyarrow")


def here(torch: str, fbgemm: str, torchrec: str) -> dict[str, str]:
    """An environment with these releases."""
    return {**dict.fromkeys(OTHERS, "1"), "torch": torch, "fbgemm-gpu-cpu": fbgemm, "torchrec": torchrec}


def verdicts(versions: dict[str, str]) -> dict[str, Verdict]:
    return {check.name: check.verdict for check in stack.check_packages(versions)}


def test_what_is_installed_here_passes() -> None:
    assert verdicts(stack.installed_versions()) == {"pairing": Verdict.ok}
    assert stack.check_python().verdict is Verdict.ok


@pytest.mark.parametrize(
    ("torch", "fbgemm", "torchrec", "verdict"),
    [
        ("2.13.0+cpu", "1.8.0", "1.8.0", Verdict.ok),
        ("2.10.0", "1.5.0", "1.4.0", Verdict.ok),  # rocm/primus v26.1
        ("2.11.0+cu130", "1.6.0", "1.6.1", Verdict.ok),
        ("2.13.0", "1.7.0", "1.7.0", Verdict.fail),
        ("2.12.0", "1.8.0", "1.8.0", Verdict.fail),
        ("2.13.0", "1.8.0", "1.5.0", Verdict.warn),
        ("2.10.0a0+git123.dev4", "1.5.0", "1.4.0", Verdict.warn),
        ("2.14.0+cu130", "1.9.0", "1.9.2", Verdict.ok),
        ("2.14.1", "1.8.0", "1.9.2", Verdict.fail),
    ],
)
def test_releases_that_belong_together(torch: str, fbgemm: str, torchrec: str, verdict: Verdict) -> None:
    assert verdicts(here(torch, fbgemm, torchrec)) == {"pairing": verdict}


@pytest.mark.parametrize(
    ("torch", "fbgemm", "torchrec"),
    [("2.12.0+rocm7.15", "2026.7.22", "1.7.0"), ("2.14.0+rocm10.1", "2026.10.8", "1.9.0")],
    ids=["rocm/primus v26.5", "rocm/primus v26.8"],
)
def test_a_build_from_source_is_not_judged_by_its_date(torch: str, fbgemm: str, torchrec: str) -> None:
    assert verdicts(here(torch, fbgemm, torchrec)) == {"pairing": Verdict.ok, "fbgemm on ROCm": Verdict.warn}


def test_repairs_for_rocm_go_by_the_commit() -> None:
    primus = stack.check_repairs("2026.10.8", "80bd3c077dc41b55cd16ed4dcad15cf7c1c1d76a")
    assert "commit 80bd3c077d, lacks 12 repairs (pull request): jagged products, backward (5984); " in primus.found
    unknown = stack.check_repairs("2026.10.8", "0123456789ab")
    assert (unknown.verdict, "lacks" in unknown.found) == (Verdict.warn, False)
    assert "git merge-base --is-ancestor 5f39c5405 0123456789ab exits with 0" in (unknown.remedy or "")
    release = stack.check_repairs("1.8.0+rocm7.2", None)
    assert "commit not recorded, lacks 12 repairs" in release.found
    assert "not known which repairs" in stack.check_repairs("1.9.0+rocm7.2", None).found


@pytest.mark.parametrize(
    ("torch", "fbgemm", "torchrec", "words"),
    [
        ("2.15.0", "1.9.0", "1.9.2", "pip install --no-deps 'torch==2.14.*' 'fbgemm-gpu-cpu==1.9.*' 'torchrec==1.9.*'"),
        ("2.14.0", "1.8.0", "1.8.0", "pip install --no-deps 'torch==2.14.*' 'fbgemm-gpu-cpu==1.9.*' 'torchrec==1.9.*'"),
        ("2.14.0", "1.9.0", "1.7.0", "pip install --no-deps 'torchrec==1.9.*'"),
    ],
)
def test_a_mixed_environment_is_named_with_its_repair(torch: str, fbgemm: str, torchrec: str, words: str) -> None:
    [check] = [one for one in stack.check_packages(here(torch, fbgemm, torchrec)) if one.name == "pairing"]
    assert torch in check.found
    assert words in (check.remedy or "")
    assert ("no FBGEMM is built against torch 2.15 yet" in check.found) == (torch == "2.15.0")


def test_missing_and_doubled_packages() -> None:
    whole = here("2.13.0+cpu", "1.8.0", "1.8.0")
    without = {name: version for name, version in whole.items() if name not in ("torchrec", "tensorboard")}
    assert verdicts(without) == {"torchrec": Verdict.fail, "tensorboard": Verdict.warn}
    assert verdicts({**whole, "fbgemm-gpu": "1.8.0"}) == {"fbgemm": Verdict.fail}


@pytest.mark.parametrize("optimize", [0, 1, 2])
@pytest.mark.parametrize(("value", "fault"), [("0.5", ""), ("0.25", "RuntimeError: bags of 1 and 2 rows of 0.5")])
def test_a_wrong_lookup_is_found(optimize: int, value: str, fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    """PYTHONOPTIMIZE drops assertions."""
    source = (Path(stack.__file__).parent / "stack_probe.py").read_text()
    probe = source.replace("fill_(0.5)", f"fill_({value})")
    exec(compile(probe, "probe", "exec", optimize=optimize), {"__name__": "__main__"})
    cpu_fault = json.loads(capsys.readouterr().out)["cpu_fault"]
    assert cpu_fault.startswith(fault) if fault else cpu_fault is None


@pytest.mark.parametrize(
    ("version", "verdict"), [((3, 9, 2), "fail"), ((3, 10, 0), "ok"), ((3, 14, 1), "ok"), ((3, 15, 0), "warn")]
)
def test_pythons(version: tuple[int, ...], verdict: str) -> None:
    assert stack.check_python(version).verdict.value == verdict


@pytest.mark.slow("processes")
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise ImportError('undefined symbol: _ZN3c10')", "ImportError: undefined symbol: _ZN3c10"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
    ],
)
def test_a_broken_torch_is_told_in_one_line(tmp_path: Path, code: str, words: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(code)
    command, environment = [sys.executable, "-m", "app.doctor", "runs=none"], {"PATH": "", "PYTHONPATH": f"{tmp_path}"}
    process = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (1, "")
    (line,) = [line for line in process.stdout.splitlines() if line.startswith("fail")]
    assert line.startswith("fail  import: ")
    assert words in line


@pytest.mark.parametrize(
    ("code", "message"),
    [("raise ImportError('no libcudart')", "ImportError: no libcudart"), ("os.abort()", "ended by SIGABRT")],
)
def test_a_broken_stack_fails(code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text(f"import os\n{code}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    check, probe = stack.probe_stack()
    assert (check.verdict, check.found, probe) == (Verdict.fail, message, None)
