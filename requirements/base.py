"""Check, while an image is built, that the base's own torch, torchrec, fbgemm and numpy stay unchanged.

`base.py record FILE` records this Python's packages; `base.py check FILE PYTHON` compares the record with its packages
at that time and with what the environment of PYTHON sees. Exit status 1 if anything was replaced.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

WATCHED = ("torch", "torchrec", "fbgemm_gpu", "numpy")


def main(arguments: Sequence[str]) -> int:
    """Record, check or print this Python's packages; return an exit status."""
    found = describe()
    if not arguments:
        print(json.dumps(found))
        return 0
    if arguments[0] == "record":
        Path(arguments[1]).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"base: {in_words(found)}")
        return 0
    recorded = json.loads(Path(arguments[1]).read_text(encoding="utf-8"))
    seen = json.loads(subprocess.run([arguments[2], __file__], capture_output=True, text=True, check=True).stdout)
    problems = differences(recorded, found, "the base's Python")
    # Packages that the base lacks may be the environment's own; all others must be the base's.
    had = {name: parts for name, parts in recorded.items() if parts}
    problems += differences(had, {name: seen[name] for name in had}, "the environment")
    for problem in problems:
        print(f"base: {problem}", file=sys.stderr)
    if not problems:
        print(f"base: untouched: {in_words(recorded)}; the environment sees {in_words(seen)}")
    return 1 if problems else 0


def describe() -> dict[str, dict[str, str] | None]:
    """Return version, directory and fingerprint of each watched package; None for one that is not installed."""
    versions: dict[str, list[str]] = {}
    owners = importlib.metadata.packages_distributions()
    for name in WATCHED:
        found = owners.get(name) or _whose_files_it_has(name)
        versions[name] = sorted({importlib.metadata.version(owner) for owner in found})
    return {name: _describe(name, versions[name]) for name in WATCHED}


def _whose_files_it_has(name: str) -> list[str]:
    """Distributions of a package that has no top_level.txt, which Python 3.10 goes by alone."""
    return [
        distribution.metadata["Name"]
        for distribution in importlib.metadata.distributions()
        if any(file.parts[0] == name for file in distribution.files or ())
    ]


def differences(
    before: dict[str, dict[str, str] | None], after: dict[str, dict[str, str] | None], where: str
) -> list[str]:
    """Return a sentence for each package that has changed."""
    sentences = []
    for name, was in before.items():
        now = after[name]
        if was != now:
            sentences.append(f"{name} was replaced: {_words(was)} before, {_words(now)} now in {where}")
    return sentences


def in_words(found: dict[str, dict[str, str] | None]) -> str:
    """Format names and versions on one line."""
    return ", ".join(f"{name} {parts['version'] if parts else 'none'}" for name, parts in found.items())


def _describe(name: str, versions: list[str]) -> dict[str, str] | None:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return None
    directory = Path(os.path.realpath(spec.origin)).parent
    return {
        "version": " and ".join(versions) or "of no distribution",
        "directory": str(directory),
        "fingerprint": fingerprint(directory),
    }


def fingerprint(directory: Path) -> str:
    """Return the SHA-256 of names, sizes and times (whole seconds) of all files except bytecode."""
    sha256 = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            status = path.stat()
            sha256.update(f"{path.relative_to(directory)} {status.st_size} {int(status.st_mtime)}\n".encode())
    return sha256.hexdigest()


def _words(parts: dict[str, str] | None) -> str:
    return f"{parts['version']} in {parts['directory']} ({parts['fingerprint'][:8]})" if parts else "nothing"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
