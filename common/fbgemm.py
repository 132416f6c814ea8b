"""The commit of the installed FBGEMM."""

import importlib.metadata
import json
import re
from collections.abc import Iterable
from pathlib import Path

NAMES = ("fbgemm-gpu", "fbgemm-gpu-cpu", "fbgemm-gpu-genai", "fbgemm-gpu-nightly", "fbgemm-gpu-nightly-cpu")
IMAGE_MANIFEST = Path("/workspace/.manifest/Dockerfile")  # Dockerfile that built the image rocm/primus
IMAGE_COMMIT = re.compile(r"(?m)^\s*(?:ARG|ENV)\s+FBGEMM_COMMIT[=\s]\s*[\"']?([0-9a-f]{7,40})\b")
DATED = re.compile(r"20\d\d\.\d+\.\d+")  # a version of a build from source: the date of the build, not of the sources


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
            stated = IMAGE_COMMIT.search(image_manifest.read_text(encoding="utf-8", errors="replace"))
            return stated and stated[1]
    return None
