"""Makes this Python's CPU stack look like a ROCm image's: marked versions, torch "for ROCm", some packages missing."""

import importlib.metadata
import py_compile
import re
import shutil
import sys
from pathlib import Path

MARKED = {"torch": "rocm7.1", "torchrec": "standin", "fbgemm_gpu-cpu": "standin", "numpy": "standin"}
MISSING = ("hydra-core", "omegaconf", "numba", "isal", "dumb-init", "tensorboard", "mlperf-logging", "tqdm")


def main() -> None:
    """Mark what is to stay, remove what is to be missing."""
    for name, mark in MARKED.items():
        set_version(name, f"{importlib.metadata.version(name).split('+')[0]}+{mark}")
    for name in MISSING:
        files = [Path(file.locate()) for file in importlib.metadata.files(name) or []]
        for file in files:
            file.unlink(missing_ok=True)
        for directory in {file.parent for file in files if file.name == "METADATA"}:
            shutil.rmtree(directory)
    version_file = next(Path(sys.prefix).glob("lib/python*/site-packages/torch/version.py"))
    text = version_file.read_text(encoding="utf-8")
    text = re.sub(r"(__version__ = )'([^'+]*)[^']*'", r"\1'\2+rocm7.1'", text)
    version_file.write_text(re.sub(r"(?m)^hip\b.*= None$", "hip = '7.1.0'", text), encoding="utf-8")
    # All else came with its bytecode; nobody shall have a reason to write here.
    py_compile.compile(str(version_file), doraise=True)


def set_version(name: str, version: str) -> None:
    """Give an installed distribution another version, in its metadata and in its directory's name."""
    distribution = importlib.metadata.distribution(name)
    old = next(Path(file.locate()).parent for file in distribution.files or [] if file.name == "METADATA")
    new = old.with_name(f"{old.name.split('-')[0]}-{version}.dist-info")
    for file in ("METADATA", "RECORD"):
        text = (old / file).read_text(encoding="utf-8").replace(old.name, new.name)
        (old / file).write_text(re.sub(r"(?m)^Version: .*$", f"Version: {version}", text, count=1), encoding="utf-8")
    shutil.move(old, new)


main()
