"""The installed FBGEMM: its commit, and the repairs for ROCm that it lacks.

The dates and commits are those of github.com/pytorch/FBGEMM; releases 1.0 to 1.8 were cut before all of these repairs.
"""

import importlib.metadata
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

NAMES = ("fbgemm-gpu", "fbgemm-gpu-cpu", "fbgemm-gpu-genai", "fbgemm-gpu-nightly", "fbgemm-gpu-nightly-cpu")
IMAGE_MANIFEST = Path("/workspace/.manifest/Dockerfile")  # Dockerfile that built the image rocm/primus
IMAGE_COMMIT = re.compile(r"(?m)^\s*(?:ARG|ENV)\s+FBGEMM_COMMIT[=\s]\s*[\"']?([0-9a-f]{7,40})\b")
DATED = re.compile(r"20\d\d\.\d+\.\d+")  # a version of a build from source: the date of the build, not of the sources
COMMITTED = {"80bd3c077dc41b55cd16ed4dcad15cf7c1c1d76a": "2026-06-17"}  # the commit in rocm/primus v26.4 to v26.8


class Repair(NamedTuple):
    """A repair for ROCm: what it concerns, its pull request, and the date of its commit."""

    subject: str
    pull_request: int
    date: str


REPAIRS = (
    Repair("jagged products, backward", 5984, "2026-07-07"),
    Repair("gradient of group_index_select, sorted", 6001, "2026-07-09"),
    Repair("gradient of group_index_select", 6008, "2026-07-13"),
    Repair("jagged products", 6019, "2026-07-17"),
    Repair("jagged softmax", 6038, "2026-07-21"),
    Repair("permutation of pooled rows", 6041, "2026-07-22"),
    Repair("batch_index_select", 6053, "2026-07-24"),
    Repair("lookup without pooling", 6071, "2026-07-25"),
    Repair("permutation of ids", 6082, "2026-07-28"),
    Repair("check of ids' bounds", 6094, "2026-07-29"),
    Repair("backward of a lookup", 6101, "2026-08-03"),
    Repair("division of ids among processes", 6162, "2026-08-14"),
)
LAST_REPAIR = "5f39c5405"  # the commit of pull request 6162


def installed_commit(names: Iterable[str] = NAMES, image_manifest: Path = IMAGE_MANIFEST) -> str | None:
    """Return the commit that the installed FBGEMM was built from; None if neither pip nor the image recorded it.

    pip records the commit of a package installed from a repository (PEP 610). A version that is a date is a build from
    source; in rocm/primus the image's own Dockerfile names its commit.
    """
    for name in names:
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        origin = json.loads(package.read_text("direct_url.json") or "{}")
        if commit := origin.get("vcs_info", {}).get("commit_id"):
            return str(commit)
        if DATED.match(package.version) and image_manifest.is_file():
            stated = IMAGE_COMMIT.search(image_manifest.read_text(errors="replace"))
            return stated and stated[1]
    return None


def missing_repairs(version: str, commit: str | None) -> list[Repair] | None:
    """Return the repairs that an FBGEMM lacks; None if neither its version nor its commit tells."""
    if commit is not None:
        date = next((date for known, date in COMMITTED.items() if known.startswith(commit)), None)
        return None if date is None else [repair for repair in REPAIRS if repair.date > date]
    release = re.match(r"1\.(\d+)", version)
    return [*REPAIRS] if release is not None and int(release[1]) <= 8 else None
