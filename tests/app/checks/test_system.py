"""What is too small or not allowed is reported; bounds are set above or below what this machine has."""

import os
import re
import resource
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from app.checks import system
from app.checks.check import Verdict
from common import limits
from tests.app.conftest import REPOSITORY
from tests.common.test_numa import write_nodes


def test_memory_and_shared_memory() -> None:
    assert system.check_memory(minimum=1).verdict is Verdict.ok
    assert system.check_memory(minimum=1 << 60).verdict is Verdict.warn
    assert system.check_shared_memory(Path("/dev/shm"), minimum=1).verdict is Verdict.ok
    assert "--shm-size" in (system.check_shared_memory(Path("/dev/shm"), minimum=1 << 60).remedy or "")
    assert system.check_shared_memory(Path("/absent")).verdict is Verdict.warn


def test_numa_nodes(tmp_path: Path) -> None:
    sizes = {0: (1 << 20, 1 << 19, 1 << 18), 1: (1 << 20, 1 << 20, 0)}
    assert list(system.check_nodes(write_nodes(tmp_path / "one", {0: sizes[0]}))) == []
    [check] = system.check_nodes(write_nodes(tmp_path / "two", sizes))
    assert (check.verdict, check.found) == (Verdict.ok, "0: 0.8 of 1.0 GiB free; 1: 1.0 of 1.0 GiB free")
    [check] = system.check_nodes(write_nodes(tmp_path / "full", {**sizes, 0: (1 << 20, 1 << 16, 0)}))
    assert check.verdict is Verdict.warn


def test_a_container_s_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CGROUP", tmp_path)
    monkeypatch.setattr(limits, "OWN_GROUPS", tmp_path / "groups")
    assert "container" not in system.check_memory().found + system.check_processors().found
    for name, text in (("memory.max", 1 << 30), ("memory.current", 0), ("cpu.max", "50000 100000")):
        (tmp_path / name).write_text(f"{text}\n")
    check = system.check_memory()
    assert check.verdict is Verdict.warn
    assert check.found.startswith("1.0 GiB (cgroup's limit")
    assert re.match(r"0\.5 of \d+ usable \(cgroup's limit\), 1 thread\b", system.check_processors().found)


def test_few_open_files() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        checks = {check.name: check for check in system.check_limits(has_gpu=False)}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert checks["open files"].verdict is Verdict.warn
    assert checks["locked memory"].verdict is Verdict.ok


def test_threads_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "100000")
    assert system.check_processors().verdict is Verdict.warn
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    assert system.check_host_name().verdict is Verdict.warn


def test_disks(tmp_path: Path) -> None:
    assert system.check_disk("disk", tmp_path / "not" / "yet").verdict in (Verdict.ok, Verdict.warn)
    (tmp_path / "file").touch()
    assert system.check_disk("disk", tmp_path / "file" / "below").verdict is Verdict.fail


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become a user who may not write")
def test_a_directory_that_is_somebody_else_s(tmp_path: Path) -> None:
    code = "import os, pathlib; from app.checks import system; os.setuid(65534)"
    code += f"\nprint(system.check_disk('disk', pathlib.Path({str(tmp_path)!r})).verdict.value)"
    for directory in (tmp_path, *tmp_path.parents):
        if not directory.stat().st_mode & stat.S_IXOTH:
            directory.chmod(0o755)  # pytest keeps others out of its own
    assert subprocess.check_output([sys.executable, "-c", code], cwd=REPOSITORY, text=True) == "fail\n"
