"""`make doctor`: packages, GPUs as probes of other machines saw them, limits, disks and datasets."""

from pathlib import Path
from typing import Any

import pytest

from app import doctor
from app.config.commands import DoctorConfig
from tests.app.datasets import write_dataset

FEW = {"train": 40, "val": 5, "test": 5}
H200 = {"name": "NVIDIA H200", "architecture": "sm_90", "memory": 150 << 30, "fault": None}
CUDA: dict[str, Any] = {"cpu_fault": None, "cuda": "13.0", "hip": None}
NO_KERNEL = {**H200, "fault": "RuntimeError: no kernel image is available"}


@pytest.mark.parametrize(
    ("torch", "fbgemm", "torchrec", "verdict", "remedy"),
    [
        ("2.13.0+cpu", "1.8.0", "1.8.0", "ok", ""),
        ("2.10.0", "1.5.0", "1.4.0", "ok", ""),  # rocm/primus v26.1
        ("2.13.0", "1.7.0", "1.7.0", "fail", "'torch==2.13.*' 'fbgemm-gpu-cpu==1.8.*' 'torchrec==1.8.*'"),
        ("2.13.0", "1.8.0", "1.5.0", "warn", "pip install --no-deps 'torchrec==1.8.*'"),
    ],
)
def test_releases_that_belong_together(torch: str, fbgemm: str, torchrec: str, verdict: str, remedy: str) -> None:
    whole = dict.fromkeys(doctor.NEEDED, "1") | {"torch": torch, "fbgemm-gpu-cpu": fbgemm, "torchrec": torchrec}
    (check,) = doctor.check_packages(whole)
    assert (check.name, check.verdict) == ("pairing", verdict)
    assert remedy in (check.remedy or "")
    (missing,) = doctor.check_packages({name: version for name, version in whole.items() if name != "torchrec"})
    assert (missing.name, missing.verdict) == ("torchrec", "fail")
    (doubled,) = doctor.check_packages({**whole, "fbgemm-gpu": "1.8.0"})
    assert (doubled.name, doubled.verdict) == ("fbgemm", "fail")


@pytest.mark.parametrize(
    ("present", "probe", "verdict", "words"),
    [
        ("NVIDIA_DEVICE", {"cuda": None, "devices": []}, "warn", "torch is the CPU build"),
        ("AMD_DEVICE", {"cuda": None, "hip": "7.1", "devices": []}, "fail", "sees no GPU of AMD here"),
        ("NVIDIA_DEVICE", {"devices": [H200]}, "ok", "NVIDIA H200, sm_90, 150 GiB, CUDA 13.0"),
        ("NVIDIA_DEVICE", {"devices": [NO_KERNEL]}, "fail", "no kernel image is available"),
    ],
)
def test_gpus(
    present: str, probe: dict[str, Any], verdict: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NVIDIA_DEVICE", "AMD_DEVICE"):
        monkeypatch.setattr(doctor, name, tmp_path if name == present else tmp_path / "absent")
    (check,) = doctor.check_devices({**CUDA, **probe})
    assert (check.verdict, words in check.found) == (verdict, True)


@pytest.mark.parametrize(("version", "verdict"), [("580.65.06", "ok"), ("575.57.08", "fail")])
def test_a_driver_older_than_cuda_needs(
    version: str, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FBGEMM's wheel for CUDA 13 wants libcudart 13, which wants driver 580; torch then sees no GPU at all."""
    driver = tmp_path / "version"
    driver.write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Sun Jul 27 07:19:38 UTC 2025\n")
    monkeypatch.setattr(doctor, "NVIDIA_DRIVER", driver)
    *_, check = doctor.check_devices({**CUDA, "devices": []})
    assert check.verdict == verdict
    assert verdict == "ok" or "580 or later" in (check.remedy or "")


def test_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "tiny/two"):
        write_dataset(tmp_path / "data" / name, rows=FEW)
    (tmp_path / "data/tiny/two/val/00000.dense.npy").unlink()
    (tmp_path / "data/theirs").mkdir()
    (tmp_path / "data/theirs/manifest.json").write_text('{"format": "webpack"}')
    monkeypatch.setattr(doctor, "probe_stack", lambda: (doctor.Check("import", "ok", ""), None))
    config = DoctorConfig(datasets=str(tmp_path / "data"), runs=str(tmp_path / "runs"))
    one, two = (check for check in doctor.run_checks(config) if check.name.startswith("dataset"))
    assert (one.verdict, "train 40, val 5, test 5" in one.found) == ("ok", True)
    assert (two.verdict, "val/00000.dense.npy: missing" in two.found) == ("fail", True)
    (tmp_path / "data/one/manifest.json").write_text('{"format": "clickwork-dataset"}')
    assert doctor.check_dataset(tmp_path / "data/one").verdict == "fail"
