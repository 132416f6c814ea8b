"""Checks of the machine: processors, memory, shared memory, limits, names, disks."""

import os
import resource
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from app.checks.check import Check, fail, ok, warn
from common.limits import affinity, cpu_quota, memory_limit, memory_of_machine, usable_cpus
from common.numa import NODES, memory_nodes
from common.processor import announces_missing_tiles

GIB = 1 << 30
SHARED_MEMORY_BYTES = GIB
MEMORY_BYTES = 4 * GIB
OPEN_FILES = 4_096
LEAST_FREE_SHARE = 0.1  # share of a NUMA node's memory
DISK_WARN_BYTES, DISK_FAIL_BYTES = 10 * GIB, GIB


def check_processors() -> Check:
    """Check the processors that this process may use, and the threads that the environment asks for."""
    usable, quota = usable_cpus(), cpu_quota()
    threads = os.environ.get("OMP_NUM_THREADS", "")
    processors = f"{affinity()} of {os.cpu_count()} usable"
    if quota is not None:
        processors = f"{quota:g} of {os.cpu_count()} usable (cgroup's limit), {usable} thread{'s' * (usable > 1)}"
    if announces_missing_tiles():
        processors += "; AMX is announced but missing, bf16 uses AVX-512"
    if threads.isdigit() and int(threads) > usable:
        return warn("processors", f"{processors}, OMP_NUM_THREADS={threads}", "unset it, or set runtime.num_threads")
    return ok("processors", processors)


def check_memory(minimum: int = MEMORY_BYTES) -> Check:
    """Check the memory of the machine, or of its cgroup (a container, a Slurm job)."""
    total, limit = memory_of_machine(), memory_limit()
    usable = min(total, limit or total)
    memory = f"{usable / GIB:.1f} GiB" + (f" (cgroup's limit; the machine has {total / GIB:.1f})" if limit else "")
    if usable < minimum:
        remedy = "use a smaller data.memory_budget and data.max_ind_range, or allow more memory"
        return warn("memory", memory, remedy)
    return ok("memory", memory)


def check_nodes(directory: Path = NODES) -> Iterator[Check]:
    """Check each NUMA node's free memory, if there are several: page-locked batches must fit on their GPU's node."""
    nodes = memory_nodes(directory)
    if len(nodes) < 2:
        return
    sizes = [f"{node.number}: {node.free_bytes / GIB:.1f} of {node.total_bytes / GIB:.1f} GiB free" for node in nodes]
    if any(node.free_bytes < LEAST_FREE_SHARE * node.total_bytes for node in nodes):
        remedy = "end what uses the memory of the full node (numastat -p shows who)"
        yield warn("numa", "; ".join(sizes), remedy)
    else:
        yield ok("numa", "; ".join(sizes))


def check_shared_memory(path: Path = Path("/dev/shm"), minimum: int = SHARED_MEMORY_BYTES) -> Check:
    """Check the shared memory, by which processes of one machine exchange tensors."""
    try:
        total, _, free = shutil.disk_usage(path)
    except OSError as error:
        return warn("shared memory", f"{path}: {error.strerror}", "mount a tmpfs there: several processes need it")
    space = f"{path}: {free / GIB:.1f} of {total / GIB:.1f} GiB free"
    if free < minimum:
        remedy = "docker: --shm-size=8g, or --ipc=host; compose: shm_size; else: mount -o remount,size=8g /dev/shm"
        return warn("shared memory", space, remedy)
    return ok("shared memory", space)


def check_limits(has_gpu: bool, min_files: int = OPEN_FILES) -> Iterator[Check]:
    """Check limits of this process that matter for training on many devices."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < min_files:
        yield warn("open files", f"at most {files}", f"ulimit -n {min_files} (docker: --ulimit nofile={min_files})")
    else:
        yield ok("open files", "no limit" if files == resource.RLIM_INFINITY else f"at most {files}")
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if locked == resource.RLIM_INFINITY:
        yield ok("locked memory", "no limit")
    elif has_gpu:
        yield warn(
            "locked memory",
            f"at most {locked / GIB:.2f} GiB",
            "ulimit -l unlimited (docker: --ulimit memlock=-1): RDMA and pinned memory need it",
        )
    else:
        yield ok("locked memory", f"at most {locked / GIB:.2f} GiB; irrelevant without a GPU")


def check_host_name() -> Check:
    """Check whether the host's own name resolves, as launchers assume."""
    name = socket.gethostname()
    try:
        return ok("host name", f"{name} is {socket.gethostbyname(name)}")
    except OSError:
        remedy = "add it to /etc/hosts; until then give torchrun --local-addr 127.0.0.1, as make does"
        return warn("host name", f"{name} does not resolve", remedy)


def check_disk(name: str, path: Path) -> Check:
    """Check the free space at `path` or its nearest existing parent, and the permission to write there."""
    parent = path.absolute()
    while not parent.exists():
        parent = parent.parent
    if not os.access(parent, os.W_OK | os.X_OK):
        return fail(name, f"{parent}: no permission to write", f"make it yours: sudo chown $USER {parent}")
    if not parent.is_dir():
        return fail(name, f"{parent}: not a directory", "move it away, or give another path")
    free = shutil.disk_usage(parent).free
    space = f"{parent}: {free / GIB:.1f} GiB free"
    if free < DISK_FAIL_BYTES:
        return fail(name, space, "free some, or give another path")
    if free < DISK_WARN_BYTES:
        return warn(name, space, "enough for small datasets only")
    return ok(name, space)
