"""The machine: limits of control groups, memory, the processor, FBGEMM's commit."""

from pathlib import Path

import pytest

from common import machine

GIB = 1 << 30
V2 = "0::/a/b\n"
V1 = "5:memory:/a/b\n4:cpu,cpuacct:/a/b\n1:name=systemd:/x\n0::/x\n"


@pytest.fixture
def own_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(machine, "affinity", lambda: 8)


def write_groups(root: Path, groups: str, files: dict[str, str]) -> None:
    for name, text in {"groups": groups, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text if name == "groups" else f"{text}\n")


def memory(limit: object, usage: int = 5) -> dict[str, str]:
    return {"memory.max": str(limit), "memory.current": str(usage)}


def memory_v1(directory: str, limit: int, usage: int = 5) -> dict[str, str]:
    root = f"memory/{directory}/memory"
    return {f"{root}.limit_in_bytes": str(limit), f"{root}.usage_in_bytes": str(usage)}


def quota_v1(directory: str, quota: int) -> dict[str, str]:
    return {f"cpu/{directory}/cpu.cfs_quota_us": str(quota), f"cpu/{directory}/cpu.cfs_period_us": "100000"}


@pytest.mark.usefixtures("own_groups")
@pytest.mark.parametrize(
    ("groups", "files", "quota", "limit"),
    [
        (V2, {}, None, None),
        (V2, {"cpu.max": "max 100000", **memory("max")}, None, None),
        (V2, {"cpu.max": "50000 100000", **memory(GIB)}, 0.5, GIB),
        (V2, {"a/b/cpu.max": "150000 100000", "a/cpu.max": "100000 100000"}, 1.0, None),
        (V2, {"a/b/cpu.max": "300000 50000"}, 6.0, None),
        ("0::/../..\n", {"cpu.max": "50000 100000"}, 0.5, None),
        (V1, quota_v1(".", -1), None, None),
        (V1, quota_v1(".", 50000), 0.5, None),
        (V1, memory_v1("a", GIB) | memory_v1("a/b", 3 * GIB), None, GIB),
        (V1, memory_v1(".", 1 << 62), None, None),
    ],
)
def test_limits_are_those_of_the_groups(
    groups: str, files: dict[str, str], quota: float | None, limit: int | None, tmp_path: Path
) -> None:
    write_groups(tmp_path, groups, files)
    assert (machine.cpu_quota(), machine.memory_limit()) == (quota, limit)
    assert machine.usable_cpus() == (8 if quota is None else max(1, int(quota)))


@pytest.mark.usefixtures("own_groups")
@pytest.mark.parametrize(("groups", "files"), [(V2, memory(10**6, 400_000)), (V1, memory_v1("a/b", 10**6, 400_000))])
def test_memory_is_available_below_the_limit(groups: str, files: dict[str, str], tmp_path: Path) -> None:
    assert 1 << 20 < machine.host_bytes_available() <= machine.memory_of_machine()
    write_groups(tmp_path, groups, files)
    assert machine.host_bytes_available() == 600_000
