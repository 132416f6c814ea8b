"""Compiles device.cpp once for each torch, into the user's cache directory. Nothing here imports torch."""

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import tempfile
from importlib.machinery import PathFinder
from pathlib import Path

SOURCE = Path(__file__).with_name("device.cpp")
OPTIONS = ("-std=c++20", "-O1", "-shared", "-fPIC")


def torch_directory() -> Path:
    spec = PathFinder.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def library() -> Path:
    """The compiled device; compiles it if need be, which takes some 20 s.

    Raises:
        RuntimeError: there is no g++, or it reports errors.
    """
    content = SOURCE.read_bytes() + " ".join([importlib.metadata.version("torch"), *OPTIONS]).encode()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clickwork"
    path = cache / f"pretend_cuda_{hashlib.sha256(content).hexdigest()[:16]}.so"
    if not path.exists():
        _compile(path)
    return path


def why_not() -> str:
    """Why the device cannot be used here; empty if it can."""
    if shutil.which("g++") is None:
        return "no g++ to compile the pretended CUDA device with"
    if not importlib.metadata.version("torch").endswith("+cpu"):
        return "the pretended CUDA device needs the CPU build of torch"
    return ""


def _compile(path: Path) -> None:
    if shutil.which("g++") is None:
        raise RuntimeError(why_not())
    path.parent.mkdir(parents=True, exist_ok=True)
    torch = torch_directory()
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        library_file = Path(directory) / path.name
        command = ["g++", *OPTIONS, f"-I{torch}/include", f"-L{torch}/lib", str(SOURCE), "-o", str(library_file)]
        command += ["-ltorch_cpu", "-lc10"]
        process = subprocess.run(command, check=False, capture_output=True, text=True)
        if process.returncode:
            raise RuntimeError(f"g++ cannot compile {SOURCE.name}:\n{process.stderr}")
        os.replace(library_file, path)  # whole or not at all: other processes may compile it, too
