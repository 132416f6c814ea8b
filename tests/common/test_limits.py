"""Limits of control groups of both versions, by a faked root."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from common import limits
from common.errors import UserError

GIB = 1 << 30
V2 = "0::/a/b\n"
V1 = "5:memory:/a/b\n4:cpu,cpuacct:/a/b\n1:name=systemd:/x\n0::/x\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")


def memory(limit: object, usage: int = 5) -> dict[str, str]:
    return {"memory.max": str(limit), "memory.current": str(usage)}


def memory_v1(directory: str, limit: int, usage: int = 5) -> dict[str, str]:
    root = f"memory/{directory}"
    return {f"{root}/memory.limit_in_bytes": str(limit), f"{root}/memory.usage_in_bytes": str(usage)}


@pytest.mark.parametrize(
    ("groups", "files", "quota", "limit"),
    [
        ("", {}, None, None),
        (V2, {}, None, None),
        (V2, {"cpu.max": "max 100000", **memory("max")}, None, None),
        (V2, {"cpu.max": "50000 100000", **memory(GIB)}, 0.5, GIB),
        (V2, {"a/b/cpu.max": "150000 100000", "a/cpu.max": "100000 100000"}, 1.0, None),
        (V2, {"a/b/cpu.max": "300000 50000"}, 6.0, None),
        (V2, {"a/b/cpu.max": "900000 100000"}, None, None),
        (V2, {"x/cpu.max": "50000 100000"}, None, None),
        ("0::/../..\n", {"cpu.max": "50000 100000"}, 0.5, None),
        (V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None, None),
        (V1, {"cpu/a/b/cpu.cfs_quota_us": "25000", "cpu/a/b/cpu.cfs_period_us": "100000"}, 0.25, None),
        (V1, {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5, None),
        (V1, memory_v1("a", GIB) | memory_v1("a/b", 3 * GIB), None, GIB),
        (V1, memory_v1(".", GIB), None, GIB),
        (V1, memory_v1(".", 1 << 62), None, None),
    ],
)
def test_limits_are_those_of_the_groups(
    groups: str,
    files: dict[str, str],
    quota: float | None,
    limit: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(tmp_path, files)
    (tmp_path / "groups").write_text(groups)
    monkeypatch.setattr(limits, "CGROUP", tmp_path)
    monkeypatch.setattr(limits, "OWN_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(limits, "affinity", lambda: 8)
    assert (limits.cpu_quota(), limits.memory_limit()) == (quota, limit)
    assert limits.usable_cpus() == (8 if quota is None else max(1, int(quota)))


@pytest.mark.parametrize(
    ("groups", "files"), [(V2, memory(1_000_000, 400_000)), (V1, memory_v1("a/b", 1_000_000, 400_000))]
)
def test_memory_is_available_below_the_limit(
    groups: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CGROUP", tmp_path)
    monkeypatch.setattr(limits, "OWN_GROUPS", tmp_path / "groups")
    assert 1 << 20 < limits.host_bytes_available() <= limits.memory_of_machine()
    write(tmp_path, files)
    (tmp_path / "groups").write_text(groups)
    assert limits.host_bytes_available() == 600_000


@pytest.mark.parametrize(("limit", "is_refused"), [(250 << 20, True), (512 << 20, False), (1 << 62, False)])
def test_a_container_too_small_for_the_libraries_is_refused(
    limit: int, is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, memory(limit))
    (tmp_path / "groups").write_text("0::/\n")
    monkeypatch.setattr(limits, "CGROUP", tmp_path)
    monkeypatch.setattr(limits, "OWN_GROUPS", tmp_path / "groups")
    with pytest.raises(UserError, match="may use 250 MiB of memory") if is_refused else nullcontext():
        limits.require_memory("training")
