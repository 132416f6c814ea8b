"""The Python half of the pretended CUDA device: torch.cuda, NCCL's name, and the moment at which both are put in place.

The library (device.cpp) must be loaded before torch is imported, which looks for CUDA once; the rest is put in place
when torch and FBGEMM have been imported. `install_on_import` sees to both.

Environment: PRETEND_CUDA_DEVICES (1), PRETEND_CUDA_MEMORY (bytes, 80 GiB). Nothing here imports torch at its top.
"""

import ctypes
import hashlib
import importlib.abc
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import types
import uuid
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("device.cpp")
OPTIONS = ("-std=c++20", "-O1", "-shared", "-fPIC")
NUM_DEVICES = int(os.environ.get("PRETEND_CUDA_DEVICES", "1"))
GPU: dict[str, Any] = {
    "name": "Pretended GPU",
    "gcnArchName": "Pretended",
    "major": 9,
    "minor": 0,
    "warp_size": 32,
    "is_integrated": 0,
}
GPU |= {"multi_processor_count": 132, "max_threads_per_multi_processor": 2048, "regs_per_multiprocessor": 65536}
GPU |= {"L2_cache_size": 50 << 20, "shared_memory_per_block": 49152, "clock_rate": 1_980_000}
GPU |= {"memory_clock_rate": 2_619_000, "memory_bus_width": 5120}
PYTHON_PATH = f"{SOURCE.parent / 'site'}{os.pathsep}{SOURCE.parents[2]}"  # of processes to be put on it
SYNC_DEBUG_MODES = {"default": 0, "warn": 1, "error": 2}


def why_not() -> str:
    """Why the device cannot be used here; empty if it can."""
    if shutil.which("g++") is None:
        return "no g++ to compile the pretended CUDA device with"
    if not importlib.metadata.version("torch").endswith("+cpu"):
        return "the pretended CUDA device needs the CPU build of torch"
    return ""


def torch_directory() -> Path:
    spec = PathFinder.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def library() -> Path:
    """device.cpp compiled for this torch, in the user's cache directory; RuntimeError if that is not possible.

    It is compiled if need be, which takes some 20 s.
    """
    content = SOURCE.read_bytes() + " ".join([importlib.metadata.version("torch"), *OPTIONS]).encode()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clickwork"
    path = cache / f"pretend_cuda_{hashlib.sha256(content).hexdigest()[:16]}.so"
    if path.exists():
        return path
    if shutil.which("g++") is None:
        raise RuntimeError(why_not())
    cache.mkdir(parents=True, exist_ok=True)
    torch = torch_directory()
    with tempfile.TemporaryDirectory(dir=cache) as directory:
        output = Path(directory) / path.name
        command = ["g++", *OPTIONS, f"-I{torch}/include", f"-L{torch}/lib", str(SOURCE), "-o", str(output)]
        command += ["-ltorch_cpu", "-lc10"]
        process = subprocess.run(command, check=False, capture_output=True, text=True)
        if process.returncode:
            raise RuntimeError(f"g++ cannot compile {SOURCE.name}:\n{process.stderr}")
        os.replace(output, path)  # whole or not at all: other processes may compile it, too
    return path


def memory_bytes() -> int:
    """Memory of a device; looked up at each call, since tests fork a process that has been started already."""
    return int(os.environ.get("PRETEND_CUDA_MEMORY", str(80 << 30)))


def install_on_import() -> None:
    """Put the device in place when torch is imported, which must not have happened yet; again, it has no effect."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if "torch" in sys.modules:
        raise ImportError("the pretended CUDA device must be installed before torch is imported")
    sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Does something before or after the import of a few modules."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        after = {"torch": _after_torch, "fbgemm_gpu": _cover, "app.metrics.timing": _shrink_ceilings}.get(name)
        if after is None:
            return None
        if name == "torch":
            _load_library()
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            _call_after(spec.loader, after)
        return spec


def _call_after(loader: Any, after: Callable[[], object]) -> None:
    execute = loader.exec_module

    def exec_module(module: types.ModuleType) -> None:
        execute(module)
        after()

    loader.exec_module = exec_module


def _load_library() -> None:
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(torch_directory() / "lib" / name))
    ctypes.CDLL(str(library()))


def _cover() -> None:
    import torch

    torch.ops.pretend_cuda.cover()


def _shrink_ceilings() -> None:
    """Measure a machine's limits on what a CPU can do: a GPU's sizes take it minutes at the end of a run."""
    from app.metrics import timing

    timing.STREAM_BYTES["cuda"], timing.MATRIX_ROWS["cuda"] = 1 << 20, 64


def _after_torch() -> None:
    """Make torch one that was built for CUDA."""
    import torch
    from torch.distributed import distributed_c10d as c10d

    for name, value in _cuda_functions(torch).items():
        setattr(torch.cuda, name, value)
        for module in (torch.cuda.random, torch.cuda.graphs):
            if name in vars(module):
                setattr(module, name, value)
    torch.cuda.nccl.version = lambda: (2, 27, 3)
    vars(torch.cuda.nvtx).update(range_push=lambda *_: None, range_pop=lambda *_: None)
    vars(torch._C).update(_cuda_getCurrentRawStream=lambda index: 0, _host_emptyCache=lambda: None)
    torch.version.cuda = "13.0"
    torch.backends.cuda.is_built = lambda: True
    torch.Tensor.record_stream = lambda self, s: None  # type: ignore[method-assign]
    c10d._NCCL_AVAILABLE = True
    vars(c10d)["ProcessGroupNCCL"] = vars(torch.distributed)["ProcessGroupNCCL"] = _nccl(c10d)
    # A GPU's part of a backward runs on one thread, in one order. FBGEMM's permutation of vectors is a CPU's node
    # here, with a thread of its own: processes would begin collectives in different orders, and wait for ever.
    torch.autograd.set_multithreading_enabled(False)
    _cover()
    _hide_cpu_build_of_fbgemm()


def _hide_cpu_build_of_fbgemm() -> None:
    """A program may look at the names of installed packages to learn what FBGEMM was built for."""
    version = importlib.metadata.version

    def visible(name: str) -> str:
        if name == "fbgemm_gpu-cpu":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    vars(importlib.metadata)["version"] = visible


def _cuda_functions(torch: Any) -> dict[str, Any]:
    """Return the parts of torch.cuda here, by name."""
    from tests.pretend_cuda import streams

    ops, index_of = torch.ops.pretend_cuda, streams.index_of

    def exchange(index: int) -> int:
        before = ops.current()
        if index >= 0:
            ops.select(index)
        return before

    def properties(device: Any = None) -> types.SimpleNamespace:
        return types.SimpleNamespace(
            **GPU, total_memory=memory_bytes(), uuid=uuid.UUID(int=index_of(device) + 1), pci_bus_id=1
        )

    def get_rng_state(device: Any = "cuda") -> Any:
        return ops.rng_state(index_of(device))

    def set_rng_state(state: Any, device: Any = "cuda") -> None:
        ops.set_rng_state(index_of(device), state)

    def set_rng_states(states: Any) -> None:
        for index, state in enumerate(states):
            set_rng_state(state, index)

    def manual_seed_all(seed: int) -> None:
        for index in range(NUM_DEVICES):
            ops.seed(index, int(seed) & (2**63 - 1))

    def set_sync_debug_mode(mode: int | str) -> None:
        ops.set_sync_debug_mode(SYNC_DEBUG_MODES[mode] if isinstance(mode, str) else mode)

    return {
        **dict.fromkeys(("is_available", "is_initialized", "_is_compiled", "is_tf32_supported"), lambda: True),
        **dict.fromkeys(("init", "_lazy_init", "empty_cache", "ipc_collect"), lambda: None),
        "_lazy_call": lambda function, **_: function(),
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: NUM_DEVICES,
        "current_device": ops.current,
        "set_device": lambda device: ops.select(index_of(device)),
        "_exchange_device": exchange,
        "_maybe_exchange_device": exchange,
        "get_device_properties": properties,
        "get_device_name": lambda device=None: properties(device).name,
        "get_device_capability": lambda device=None: (9, 0),
        "get_arch_list": lambda: ["sm_80", "sm_90"],
        "is_bf16_supported": lambda *_, **__: True,
        "synchronize": lambda device=None: ops.wait("synchronize"),
        "set_sync_debug_mode": set_sync_debug_mode,
        "get_sync_debug_mode": ops.sync_debug_mode,
        **dict.fromkeys(("memory_allocated", "memory_reserved"), lambda device=None: ops.memory()[0]),
        **dict.fromkeys(("max_memory_allocated", "max_memory_reserved"), lambda device=None: ops.memory()[1]),
        "reset_peak_memory_stats": lambda device=None: ops.reset_peak(),
        "mem_get_info": lambda device=None: (memory_bytes() - ops.memory()[0], memory_bytes()),
        "memory_stats": lambda device=None: {"allocated_bytes.all.current": ops.memory()[0], "num_alloc_retries": 0},
        "get_rng_state": get_rng_state,
        "set_rng_state": set_rng_state,
        "get_rng_state_all": lambda: [get_rng_state(index) for index in range(NUM_DEVICES)],
        "set_rng_state_all": set_rng_states,
        "manual_seed": lambda seed: ops.seed(ops.current(), int(seed) & (2**63 - 1)),
        "manual_seed_all": manual_seed_all,
        "initial_seed": lambda: 0,
        **{name: getattr(streams, name) for name in streams.NAMES},
    }


def _nccl(c10d: Any) -> type:
    """Gloo under NCCL's name; device.cpp lets it see the device's tensors as CPU tensors."""

    class ProcessGroupNCCL(c10d.ProcessGroupGloo):
        class Options:
            is_high_priority_stream = False
            _timeout = c10d.default_pg_timeout

        def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
            super().__init__(store, rank, size, options._timeout)

        def _group_start(self) -> None: ...
        def _group_end(self) -> None: ...

    return ProcessGroupNCCL
