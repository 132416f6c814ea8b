"""python -m app.doctor: what is wrong with this machine, its packages and datasets, and how to fix it.

Each line is ok, warn (works, but slower or with something missing) or fail, with the remedy. Exit status: 0 if
nothing fails, else 1.
"""

if __name__ == "__main__":  # before the imports below, which may take seconds
    from app.commands import COMMANDS
    from common.cli import run

    run(COMMANDS["doctor"])


import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from app.config.commands import DoctorConfig
from common import machine
from common.cli import colour_text
from common.documents import format_of
from common.errors import UserError, last_line
from common.files import write_atomically
from common.machine import memory_limit, memory_of_machine
from data_prep.dataset.format import FORMAT_NAME, MANIFEST_NAME, load_manifest, shard_path

NEEDED = ("torch", "torchrec", "numpy", "hydra-core", "omegaconf", "numba", "tqdm", "isal", "pyarrow")
TORCH_MINOR_OVER_FBGEMM = 5  # fbgemm 1.X is built against torch 2.(X + 5)
NEWEST_FBGEMM_MINOR = 9  # newest release so far; torch 2.15 has none
REMAKE = "make environment (make clean first, if it was made by make)"
PROBE_SECONDS = 180  # for the imports and the lookups of `probe_stack`
NVIDIA_DRIVER, NVIDIA_DEVICE, AMD_DEVICE = map(Path, ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/kfd"))
MIN_DRIVERS = {"12": 525, "13": 580}  # NVIDIA's CUDA compatibility: first driver branch for each CUDA major release
GIB = 1 << 30
# Verdicts and their colours. warn: it works, but more slowly or with something missing.
VERDICTS = {"ok": "green", "warn": "yellow", "fail": "red"}


class Check(NamedTuple):
    """Result of one check: its name, the verdict, the finding, and the remedy unless the verdict is ok."""

    name: str
    verdict: str
    found: str
    remedy: str | None = None


def main(config: DoctorConfig) -> int:
    """Run all checks and report; return the exit status."""
    checks = []
    for check in run_checks(config):
        checks.append(check)
        if not config.json:
            verdict = colour_text(f"{check.verdict:<4}", VERDICTS[check.verdict], sys.stdout)
            remedy = "" if check.remedy is None else f"\n      -> {check.remedy}"
            print(f"{verdict}  {check.name}: {check.found}{remedy}", flush=True)
    counts = {verdict: sum(check.verdict == verdict for check in checks) for verdict in VERDICTS}
    document = {"checks": [check._asdict() for check in checks], **counts}
    text = json.dumps(document, indent=1) + "\n"
    print(text if config.json else ", ".join(f"{count} {verdict}" for verdict, count in counts.items()), flush=True)
    if config.out is not None:
        write_atomically(Path(config.out), text.encode())
    return int(counts["fail"] > 0)


def run_checks(config: DoctorConfig) -> Iterator[Check]:
    """Run all checks; those that explain failures of others come first."""
    versions = {
        str(package.name).lower().replace("_", "-"): package.version for package in importlib.metadata.distributions()
    }
    yield from check_packages(versions)
    verdict, probe = probe_stack()
    yield verdict
    if probe is not None:
        yield from check_devices(probe)
    if AMD_DEVICE.exists():
        yield from check_groups([AMD_DEVICE, *sorted(Path("/dev/dri").glob("renderD*"))])
    yield check_memory()
    yield check_shared_memory()
    root = Path(config.data.path or config.datasets)
    yield check_disk("disk for data", root)
    yield check_disk("disk for runs", Path(config.runs))
    # Every finished dataset at any depth, without other programs' files.
    datasets = [path.parent for path in sorted(root.rglob(MANIFEST_NAME)) if format_of(path) in (None, FORMAT_NAME)]
    yield from map(check_dataset, datasets if config.data.path is None else [root])


def check_packages(versions: Mapping[str, str]) -> Iterator[Check]:
    """Check whether all packages are installed, and whether torch, FBGEMM and TorchRec belong together."""
    for name in NEEDED:
        if name not in versions:
            yield Check(name, "fail", "not installed", REMAKE)
    builds = [name for name in machine.NAMES if name in versions]
    if not builds:
        yield Check("fbgemm", "fail", "not installed", REMAKE)
    elif len(builds) > 1:
        remedy = f"both write the module fbgemm_gpu: uninstall them all, then {REMAKE}"
        yield Check("fbgemm", "fail", f"{' and '.join(builds)} are both installed", remedy)
    elif {"torch", "torchrec"} <= versions.keys():
        yield _check_pairing(versions["torch"], builds[0], versions[builds[0]], versions["torchrec"])


def _check_pairing(torch: str, build: str, release: str, torchrec: str) -> Check:
    """Check that releases of torch, of a build of FBGEMM and of TorchRec belong together."""
    releases = f"torch {torch}, {build} {release}, torchrec {torchrec}"
    # AMD's own builds have a date for a version, which does not tell the release.
    if machine.DATED.match(release):
        source = f"built from source beside this torch on the date that is its version, {machine.installed_commit()}"
        return Check("pairing", "ok", f"{releases}, {source}")
    minors = [re.match(r"(\d+)\.(\d+)(?!.*dev)", version) for version in (torch, release, torchrec)]
    torch_minor, fbgemm_minor, torchrec_minor = (int(minor[2]) if minor else -1 for minor in minors)
    if None in minors:
        remedy = "not releases, so it is not known whether they belong together; see import below"
        return Check("pairing", "warn", releases, remedy)
    if torch_minor != fbgemm_minor + TORCH_MINOR_OVER_FBGEMM:
        partner = min(torch_minor - TORCH_MINOR_OVER_FBGEMM, NEWEST_FBGEMM_MINOR)
        newest = f"'torch==2.{partner + TORCH_MINOR_OVER_FBGEMM}.*' '{build}==1.{partner}.*'"
        remedy = f"fbgemm 1.X is built against torch 2.(X+5): pip install --no-deps {newest} 'torchrec==1.{partner}.*'"
        return Check("pairing", "fail", releases, remedy)
    if not fbgemm_minor - 1 <= torchrec_minor <= fbgemm_minor:
        return Check("pairing", "warn", releases, f"pip install --no-deps 'torchrec==1.{fbgemm_minor}.*'")
    return Check("pairing", "ok", releases)


def probe_stack() -> tuple[Check, Any]:
    """Import the stack and look up a few rows in a process of its own; return the findings, None if it crashed."""
    try:
        command = [sys.executable, "-c", "from app.doctor import describe_stack; describe_stack()"]
        process = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        remedy = "look for a hanging driver or file system"
        return Check("import", "fail", f"not done after {PROBE_SECONDS} s", remedy), None
    if process.returncode:
        end = last_line(process.stderr, f"exit status {process.returncode}")
        if process.returncode < 0:
            end = f"ended by {signal.Signals(-process.returncode).name}"
        return Check("import", "fail", end, f"torch, fbgemm_gpu or torchrec is broken: {REMAKE}"), None
    # Libraries may print before the JSON, so only the last line counts.
    probe = json.loads(process.stdout.splitlines()[-1])
    if probe["cpu_fault"]:
        return Check("import", "fail", f"a lookup on the CPU fails: {probe['cpu_fault']}", REMAKE), probe
    return Check("import", "ok", "torch, fbgemm_gpu and torchrec load; a lookup on the CPU is right"), probe


def describe_stack() -> None:
    """Describe torch, FBGEMM and TorchRec, and test a lookup; write JSON to stdout."""
    # This runs in a process of its own, since a broken package may crash it.
    import torch
    import torchrec  # noqa: F401
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import ComputeDevice, EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen as Tables

    def fault_of(device: str) -> str | None:
        """Look up two bags and run a layer's backward; return in one line what went wrong, or None."""
        location = (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
        if device == "cpu":
            location = (EmbeddingLocation.HOST, ComputeDevice.CPU)
        try:
            tables = Tables([(8, 4, *location)], device=torch.device(device))
            with torch.no_grad():
                for weight in tables.split_embedding_weights():
                    weight.fill_(0.5)
            pooled = tables(torch.tensor([1, 2, 3], device=device), torch.tensor([0, 1, 3], device=device))
            if pooled.tolist() != [[0.5] * 4, [1.0] * 4]:
                raise RuntimeError(f"bags of 1 and 2 rows of 0.5 were looked up as {pooled.tolist()}")
            torch.nn.Linear(4, 4, device=device)(pooled).sum().backward()
        except Exception as error:  # noqa: BLE001  # whatever it is, it is the fault to report
            return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        return None

    devices = []
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        architecture = gpu.gcnArchName if torch.version.hip else f"sm_{gpu.major}{gpu.minor}"
        known = {"name": gpu.name, "memory": gpu.total_memory, "architecture": architecture}
        devices.append({**known, "fault": fault_of(f"cuda:{index}")})
    versions = {"cuda": torch.version.cuda, "hip": torch.version.hip}
    json.dump({**versions, "cpu_fault": fault_of("cpu"), "devices": devices}, sys.stdout)


def check_devices(probe: Mapping[str, Any]) -> Iterator[Check]:
    """Check the GPUs that the probe of the stack found, and their driver."""
    cuda, hip, devices = probe["cuda"], probe["hip"], probe["devices"]
    built_for = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else None
    present = "NVIDIA" if NVIDIA_DEVICE.exists() else "AMD" if AMD_DEVICE.exists() else None
    for index, device in enumerate(devices):
        name, architecture = f"gpu {index}", device["architecture"]
        description = f"{device['name']}, {architecture}, {device['memory'] / GIB:.0f} GiB, {built_for}"
        remedy = device["fault"] and "install an fbgemm_gpu built for this GPU and this torch"
        fault = f"; FBGEMM's lookup fails: {device['fault']}" if device["fault"] else ""
        yield Check(name, "fail" if fault else "ok", f"{description}{fault}", remedy)
    if not devices and present and built_for is None:
        remedy = f"install torch, fbgemm_gpu and torchrec for {present} GPUs, or start its container"
        yield Check("gpu", "warn", f"an {present} GPU is there, but torch is the CPU build", remedy)
    elif not devices and present:
        remedy = "check the driver, CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES, and the groups below"
        yield Check("gpu", "fail", f"torch is built for {built_for}, and sees no GPU of {present} here", remedy)
    elif not devices and built_for:
        remedy = "give the container its devices (docker compose --profile cuda or rocm), or use runtime.platform=cpu"
        yield Check("gpu", "warn", f"torch is built for {built_for}, but this machine shows no GPU", remedy)
    elif not devices:
        yield Check("gpu", "ok", "none, and torch is the CPU build")
    if NVIDIA_DRIVER.exists():
        # A release of CUDA, such as 12.8, needs a driver that is new enough.
        driver = NVIDIA_DRIVER.read_text(encoding="utf-8", errors="replace").splitlines()[0].strip()
        version, least = re.search(r"\b(\d{3,})\.\d+", driver), MIN_DRIVERS.get((cuda or "").split(".")[0], 0)
        if version and int(version[1]) < least:
            remedy = f"install the driver's release {least} or later, or packages built for an older CUDA"
            yield Check("driver", "fail", f"{driver}: too old for CUDA {cuda}", remedy)
        else:
            yield Check("driver", "ok", driver)


def check_groups(paths: Iterable[Path]) -> Iterator[Check]:
    """Check whether this user may open AMD's devices; yield nothing if all may be opened."""
    for path in paths:
        if not os.access(path, os.R_OK | os.W_OK):
            group = path.stat().st_gid
            remedy = f"add the user to its group (sudo usermod -aG {group} $USER; docker: --group-add {group})"
            yield Check(str(path), "fail", f"no permission; it belongs to group {group}", remedy)


def _warn_if(name: str, reading: str, remedy: str | None) -> Check:
    """Return a check that warns if there is a remedy, and is ok without one; reading: what was found."""
    return Check(name, "ok" if remedy is None else "warn", reading, remedy)


def check_memory() -> Check:
    """Check the memory of the machine, or of its cgroup (a container, a Slurm job)."""
    total, limit = memory_of_machine(), memory_limit()
    usable = min(total, limit or total)
    memory = f"{usable / GIB:.1f} GiB" + (f" (cgroup's limit; the machine has {total / GIB:.1f})" if limit else "")
    remedy = "use a smaller data.memory_budget and data.max_ind_range, or allow more memory"
    return _warn_if("memory", memory, remedy if usable < 4 * GIB else None)


def check_shared_memory() -> Check:
    """Check the shared memory, by which processes of one machine exchange tensors."""
    path = Path("/dev/shm")
    if not path.exists():
        return _warn_if("shared memory", f"{path}: missing", "mount a tmpfs there: several processes need it")
    total, _, free = shutil.disk_usage(path)
    space = f"{path}: {free / GIB:.1f} of {total / GIB:.1f} GiB free"
    remedy = "docker: --shm-size=8g, or --ipc=host; compose: shm_size; else: mount -o remount,size=8g /dev/shm"
    return _warn_if("shared memory", space, remedy if free < GIB else None)


def check_disk(name: str, path: Path) -> Check:
    """Check the free space at `path` or its nearest existing parent, and the permission to write there."""
    parent = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        remedy = f"make it a directory of yours: sudo chown $USER {parent}"
        return Check(name, "fail", f"{parent}: no directory, or no permission to write", remedy)
    free = shutil.disk_usage(parent).free
    space = f"{parent}: {free / GIB:.1f} GiB free"
    if free < GIB:
        return Check(name, "fail", space, "free some, or give another path")
    return _warn_if(name, space, "enough for small datasets only" if free < 10 * GIB else None)


def check_dataset(root: Path) -> Check:
    """Check that all files in a dataset's manifest exist, with the recorded sizes."""
    name, remedy = f"dataset {root}", "preprocess again with data.overwrite=true"
    try:
        manifest = load_manifest(root)
    except UserError as error:
        return Check(name, "fail", str(error), remedy)
    shards = [(split, shard) for split, entry in manifest.splits.items() for shard in entry.shards]
    for split, shard in shards:
        for kind, digest in shard.files.items():
            path, size = shard_path(root, split, shard.name, kind), digest.bytes
            if not path.exists() or path.stat().st_size != size:
                return Check(name, "fail", f"{path}: missing, or not of {size:,} bytes", remedy)
    rows = ", ".join(f"{split} {entry.rows:,}" for split, entry in manifest.splits.items())
    return Check(name, "ok", f"{rows} rows (digests: python -m data_prep.verify data.path={root})")
