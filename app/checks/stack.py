"""Checks of Python and the packages: which are installed, whether they belong together, and whether they run."""

import importlib.metadata
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping

from app.checks.check import Check, fail, ok, warn
from app.checks.devices import Probe
from common import fbgemm
from common.documents import decode
from common.errors import last_line

PYTHONS = ((3, 10), (3, 14))  # the oldest that works, and the newest that was tried
NEEDED = ("torch", "torchrec", "numpy", "hydra-core", "omegaconf", "numba", "tqdm", "isal", "pyarrow")
USED = {
    "tensorboard": "runs write no TensorBoard scalars",
    "distributed": "data.scheduler cannot be used",
}
TORCH_MINOR_OVER_FBGEMM = 5  # fbgemm 1.X is built against torch 2.(X + 5)
NEWEST_FBGEMM_MINOR = 9  # newest release so far; torch 2.15 has none
REMAKE = "make environment (make clean first, if it was made by make)"
PROBE_SECONDS = 180


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Check:
    """Check whether this Python is supported."""
    release = ".".join(map(str, version))
    if version[:2] < PYTHONS[0]:
        return fail("python", release, "use Python 3.10 or newer: make PYTHON=python3.11 environment")
    if version[:2] > PYTHONS[1]:
        return warn("python", release, "newer than those that were tried: make PYTHON=python3.14 environment")
    return ok("python", release)


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages that matter, by normalised name; leave out those not installed."""
    versions = {}
    for name in (*NEEDED, *fbgemm.NAMES, *USED):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def check_packages(versions: Mapping[str, str]) -> Iterator[Check]:
    """Check whether all packages are installed, and whether torch, FBGEMM and TorchRec belong together."""
    for name in NEEDED:
        if name not in versions:
            yield fail(name, "not installed", REMAKE)
    for name, consequence in USED.items():
        if name not in versions:
            yield warn(name, f"not installed: {consequence}", f"pip install {name}, or {REMAKE}")
    builds = [name for name in fbgemm.NAMES if name in versions]
    if not builds:
        yield fail("fbgemm", "not installed", REMAKE)
    elif len(builds) > 1:
        remedy = f"both write the module fbgemm_gpu: uninstall them all, then {REMAKE}"
        yield fail("fbgemm", f"{' and '.join(builds)} are both installed", remedy)
    elif {"torch", "torchrec"} <= versions.keys():
        yield _check_pairing(versions["torch"], builds[0], versions[builds[0]], versions["torchrec"])
        if "rocm" in versions["torch"]:
            yield check_repairs(versions[builds[0]], fbgemm.installed_commit())


def _check_pairing(torch: str, build: str, release: str, torchrec: str) -> Check:
    releases = f"torch {torch}, {build} {release}, torchrec {torchrec}"
    if fbgemm.DATED.match(release):
        return ok("pairing", f"{releases}, built from source beside this torch on the date that is its version")
    minors = [_minor(version) for version in (torch, release, torchrec)]
    if any(minor is None for minor in minors):
        return warn(
            "pairing", releases, "not releases, so it is not known whether they belong together; see import below"
        )
    torch_minor, fbgemm_minor, torchrec_minor = (int(minor or 0) for minor in minors)
    if torch_minor != fbgemm_minor + TORCH_MINOR_OVER_FBGEMM:
        partner = torch_minor - TORCH_MINOR_OVER_FBGEMM
        if partner > NEWEST_FBGEMM_MINOR:
            partner = NEWEST_FBGEMM_MINOR
            releases += f"; no FBGEMM is built against torch 2.{torch_minor} yet"
        newest = f"'torch==2.{partner + TORCH_MINOR_OVER_FBGEMM}.*' '{build}==1.{partner}.*'"
        remedy = f"fbgemm 1.X is built against torch 2.(X+5): pip install --no-deps {newest} 'torchrec==1.{partner}.*'"
        return fail("pairing", releases, remedy)
    if not fbgemm_minor - 1 <= torchrec_minor <= fbgemm_minor:
        return warn("pairing", releases, f"pip install --no-deps 'torchrec==1.{fbgemm_minor}.*'")
    return ok("pairing", releases)


def check_repairs(version: str, commit: str | None) -> Check:
    """Check whether an FBGEMM for ROCm has the repairs that were made for it in July and August 2026.

    version: the package's; commit: of the sources that it was built from, if that is known.
    """
    sources = f"fbgemm {version}, " + (f"commit {commit[:10]}" if commit else "commit not recorded")
    missing = fbgemm.missing_repairs(version, commit)
    if missing is None:
        remedy = (
            f"in a clone of FBGEMM, git merge-base --is-ancestor {fbgemm.LAST_REPAIR} {commit or 'COMMIT'} exits with "
            "0 if it has all repairs for ROCm of July and August 2026 (docs/compatibility.md)"
        )
        return warn("fbgemm on ROCm", f"{sources}: not known which repairs it has", remedy)
    if not missing:
        return ok("fbgemm on ROCm", sources)
    names = "; ".join(f"{repair.subject} ({repair.pull_request})" for repair in missing)
    remedy = (
        "without them a kernel of 2^32 or more threads fails, as of large batches, and the gradient of "
        f"group_index_select may be wrong; FBGEMM from {fbgemm.LAST_REPAIR} on has them (docs/compatibility.md)"
    )
    return warn("fbgemm on ROCm", f"{sources}, lacks {len(missing)} repairs (pull request): {names}", remedy)


def _minor(version: str) -> int | None:
    release = re.match(r"(\d+)\.(\d+)(?!.*dev)", version)
    return int(release[2]) if release else None


def probe_stack() -> tuple[Check, Probe | None]:
    """Import the stack and look up a few rows in a process of its own; return the findings, None if it crashed."""
    try:
        command = [sys.executable, "-m", "app.checks.stack_probe"]
        process = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return fail("import", f"not done after {PROBE_SECONDS} s", "look for a hanging driver or file system"), None
    if process.returncode:
        end = last_line(process.stderr, f"exit status {process.returncode}")
        if process.returncode < 0:
            end = f"ended by {signal.Signals(-process.returncode).name}"
        return fail("import", end, f"torch, fbgemm_gpu or torchrec is broken: {REMAKE}"), None
    probe = decode(process.stdout.splitlines()[-1], Probe)
    if probe.cpu_fault:
        return fail("import", f"a lookup on the CPU fails: {probe.cpu_fault}", REMAKE), probe
    return ok("import", "torch, fbgemm_gpu and torchrec load; a lookup on the CPU is right"), probe
