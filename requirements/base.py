"""Check, while an image is built, that the base's own torch, torchrec, fbgemm and numpy stay unchanged.

`base.py record FILE` records them; `base.py check FILE PYTHON` compares the record with them as they are now and as the
environment of PYTHON sees them. Exit status 1 if anything was replaced.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

WATCHED = ("torch", "torchrec", "fbgemm_gpu", "numpy")


def main(arguments: Sequence[str]) -> int:
    """Record, check or print this Python's packages; return an exit status."""
    found = {name: describe(name) for name in WATCHED}
    if not arguments:
        print(json.dumps(found))
        return 0
    if arguments[0] == "record":
        Path(arguments[1]).write_text(json.dumps(found), encoding="utf-8")
        print(f"base: {in_words(found)}")
        return 0
    recorded = json.loads(Path(arguments[1]).read_text(encoding="utf-8"))
    seen = json.loads(subprocess.run([arguments[2], __file__], capture_output=True, text=True, check=True).stdout)
    problems = [
        f"{name} was replaced: {' in '.join(was or ['-'])} before, {' in '.join(now[name] or ['-'])} now in {where}"
        for now, where in ((found, "the base's Python"), (seen, "the environment"))
        for name, was in recorded.items()
        # What the base lacks may be the environment's own; all else must be the base's.
        if now[name] != was and (was or now is found)
    ]
    print("\n".join(f"base: {line}" for line in problems), file=sys.stderr)
    if not problems:
        print(f"base: untouched: {in_words(recorded)}; the environment sees {in_words(seen)}")
    return 1 if problems else 0


def describe(name: str) -> list[str] | None:
    """Return version, directory, and SHA-256 of names, sizes and times of a package's files; None without one."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return None
    directory, sha256 = Path(spec.origin).resolve().parent, hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            status = path.stat()
            sha256.update(f"{path.relative_to(directory)} {status.st_size} {int(status.st_mtime)}\n".encode())
    owners = [d for d in importlib.metadata.distributions() if any(file.parts[0] == name for file in d.files or ())]
    versions = sorted({d.version for d in owners if Path(str(d.locate_file(name))).resolve() == directory})
    return [" and ".join(versions) or "of no distribution", f"{directory} ({sha256.hexdigest()})"]


def in_words(found: dict[str, list[str] | None]) -> str:
    """Format names and versions on one line."""
    return ", ".join(f"{name} {parts[0] if parts else 'none'}" for name, parts in found.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
