"""GPUs as probes of other machines saw them, and files that stand for devices."""

import os
from pathlib import Path
from typing import Any

import pytest

from app.checks import devices
from app.checks.check import Verdict
from app.checks.devices import Probe
from common.documents import convert

H200 = {"name": "NVIDIA H200", "architecture": "sm_90", "memory": 150 << 30, "fault": None}
MI300X = {"name": "AMD Instinct MI300X", "architecture": "gfx942:sramecc+:xnack-", "memory": 192 << 30, "fault": None}
SOUND = {"cpu_fault": None, "gloo": True}
CUDA = {**SOUND, "cuda": "13.0", "hip": None, "kernels": ["sm_80", "sm_90", "compute_120"], "nccl": "2.27.5"}
ROCM = {**SOUND, "cuda": None, "hip": "7.1", "kernels": ["gfx90a", "gfx942"], "nccl": "2.26.6"}


def verdicts(probe: dict[str, Any]) -> dict[str, Verdict]:
    return {check.name: check.verdict for check in devices.check_devices(convert(probe, Probe))}


@pytest.mark.parametrize(
    ("architecture", "kernels", "runs"),
    [
        ("sm_90", ["sm_80", "sm_90"], True),
        ("sm_89", ["sm_80"], True),  # a later minor version of the same major one
        ("sm_80", ["sm_86"], False),
        ("sm_100", ["sm_90"], False),
        ("sm_100", ["sm_90", "compute_90"], True),  # compiled when it is loaded
        ("sm_90", ["sm_90a"], True),
        ("sm_75", ["sm_80", "compute_90"], False),
        ("gfx942:sramecc+:xnack-", ["gfx90a", "gfx942"], True),
        ("gfx950", ["gfx942"], False),
    ],
)
def test_which_kernels_run_where(architecture: str, kernels: list[str], runs: bool) -> None:
    assert devices.has_kernels_for(architecture, kernels) is runs


def test_gpus_that_work_and_gpus_that_do_not() -> None:
    good = verdicts({**CUDA, "devices": [H200, H200]})
    assert [good[name] for name in ("gpu 0", "gpu 1", "nccl")] == [Verdict.ok] * 3
    assert verdicts({**ROCM, "devices": [MI300X]})["gpu 0"] is Verdict.ok
    assert verdicts({**ROCM, "devices": [{**MI300X, "architecture": "gfx1100"}]})["gpu 0"] is Verdict.fail
    broken = {**H200, "fault": "RuntimeError: no kernel image is available"}
    assert verdicts({**CUDA, "devices": [H200, broken]})["gpu 1"] is Verdict.fail
    assert verdicts({**CUDA, "nccl": None, "devices": [H200, H200]})["nccl"] is Verdict.fail


def test_devices_of_amd_that_may_not_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kfd, nodes = tmp_path / "kfd", tmp_path / "dri"
    nodes.mkdir()
    assert list(devices.check_groups(kfd, nodes)) == []
    kfd.touch()
    group_verdicts = {check.name: check.verdict for check in devices.check_groups(kfd, nodes)}
    assert group_verdicts == {"render nodes": Verdict.fail, str(kfd): Verdict.ok}
    (nodes / "renderD128").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: path == kfd)  # root may open everything
    (first, second) = devices.check_groups(kfd, nodes)
    assert (first.verdict, second.verdict) == (Verdict.ok, Verdict.fail)
    assert str(nodes.stat().st_gid) in (second.remedy or "")


@pytest.mark.parametrize(
    ("present", "probe", "verdict", "words"),
    [
        ("", {"cuda": None, "hip": None}, Verdict.ok, "CPU build"),
        ("NVIDIA_DEVICE", {"cuda": None, "hip": None}, Verdict.warn, "CPU build"),
        ("AMD_DEVICE", {"cuda": None, "hip": "7.1"}, Verdict.fail, "torch sees none"),
        ("", {"cuda": "13.0", "hip": None}, Verdict.warn, "no GPU"),
    ],
)
def test_machines_whose_gpus_torch_does_not_see(
    present: str, probe: dict[str, Any], verdict: Verdict, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NVIDIA_DEVICE", "AMD_DEVICE"):
        monkeypatch.setattr(devices, name, tmp_path if name == present else tmp_path / "absent")
    (check,) = devices.check_devices(convert({**CUDA, **probe, "devices": []}, Probe))
    assert (check.verdict, words in check.found) == (verdict, True)


@pytest.mark.parametrize(
    ("version", "cuda", "verdict"),
    [
        ("580.65.06", "13.0", Verdict.ok),
        ("575.57.08", "13.0", Verdict.fail),
        ("535.183.01", "12.8", Verdict.ok),
        ("470.256.02", "12.8", Verdict.fail),
        ("575.57.08", None, Verdict.ok),  # torch for the CPU
    ],
)
def test_a_driver_older_than_cuda_needs(
    version: str, cuda: str | None, verdict: Verdict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FBGEMM's wheel for CUDA 13 wants libcudart 13, which wants driver 580; torch then sees no GPU at all."""
    driver = tmp_path / "version"
    driver.write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Sun Jul 27 07:19:38 UTC 2025\n")
    monkeypatch.setattr(devices, "NVIDIA_DRIVER", driver)
    for gpus in ([], [H200]):
        probe = convert({**CUDA, "cuda": cuda, "devices": gpus}, Probe)
        (check,) = (c for c in devices.check_devices(probe) if c.name == "driver")
        assert check.verdict is verdict
        assert verdict is Verdict.ok or "580 or later" in (check.remedy or "") or "525" in (check.remedy or "")


NVIDIA_SMI = """#!/bin/sh
test "$1" = --query-gpu=index,clocks.applications.graphics,clocks.max.graphics || exit 2
printf '%s\\n' {lines}
"""


def test_locked_clocks_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a program that prints what nvidia-smi's manual shows, as there is no GPU here; before, there is none."""
    with monkeypatch.context() as without:
        without.setenv("PATH", str(tmp_path))
        assert list(devices.check_clocks(tmp_path)) == []
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI.format(lines="'0, 1980, 1980' '1, 1200, 1980' '2, [N/A], 1980'"))
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for card, level in (("card0", "auto"), ("card1", "manual"), ("card2", "high")):
        (tmp_path / card / "device").mkdir(parents=True)
        (tmp_path / card / "device/power_dpm_force_performance_level").write_text(f"{level}\n")
    checks = {check.name: (check.verdict, check.found) for check in devices.check_clocks(tmp_path)}
    assert checks == {
        "clock of gpu 1": (Verdict.warn, "set to 1200 MHz of at most 1980"),
        "clock of card1": (Verdict.warn, "performance level manual, not auto"),
    }
