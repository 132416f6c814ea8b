"""Agreement of a job's machines before the first step: configuration, code, releases, dataset, run directory."""

import socket
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

from app.config.app_config import AppConfig
from app.record import provenance
from app.runtime import environment
from app.runtime.platform import Runtime
from common.command import redact
from common.documents import Json
from common.errors import UserError
from common.files import write_atomically
from common.keys import flat_values
from data_prep.dataset.format import MANIFEST_NAME, Manifest, load_manifest

COMPARED_RELEASES = ("torch", "torchrec", "fbgemm-gpu", "fbgemm_gpu-cpu", provenance.FBGEMM_COMMIT, "numpy")
MOST_NAMED = 3  # differences or machines named in one message


def require_same_program(config: AppConfig, runtime: Runtime) -> None:
    """Refuse a job whose processes differ in settings, code or releases; a collective call."""
    if runtime.world_size == 1:
        return
    facts = redact(flat_values(config))
    del facts["data.path"]  # machines may differ in it: digests tell whether the datasets do
    code = provenance.code()
    # An image or a wheel may have no commit, so the digest of the modules is compared as well.
    modules = str(code["sources_sha256"])[:12]
    facts["code"] = f"commit {code['git_sha']}, changes {code['dirty_diff_sha256']}, modules {modules}"
    # Bits depend on these libraries, so a job of different releases must be asked for.
    if not config.runtime.different_releases:
        facts |= {f"release of {name}": provenance.versions()[name] for name in COMPARED_RELEASES}
    hosts = _gather_by_host(facts, runtime)
    differences = []
    for name in dict.fromkeys(name for facts_of_host in hosts.values() for name in facts_of_host):
        values = {host: str(facts_of_host.get(name)) for host, facts_of_host in hosts.items()}
        if len(set(values.values())) > 1:
            differences.append(f"{name}: {_values_by_host(values)}")
    if differences:
        raise UserError(
            f"the machines differ: {'; '.join(differences[:MOST_NAMED])}; start the same command from the same code on "
            "each of them (runtime.different_releases=true allows other releases)"
        )


def load_same_manifest(root: Path, runtime: Runtime, is_new: bool) -> tuple[Manifest, bool]:
    """Return the dataset's manifest, and whether all machines read the same files; a collective call.

    Args:
        root: the dataset's directory on this machine.
        runtime: this process of the job.
        is_new: whether rank 0 has just made the dataset; other machines may see it only after a while.
    """
    path, fault, manifest = root / MANIFEST_NAME, None, None
    if is_new and runtime.rank > 0:
        environment.wait_until(path.is_file)
    try:
        manifest = load_manifest(root)
    except UserError as error:
        if runtime.world_size == 1:
            raise
        # A process that raises here would leave the others waiting in the exchange below.
        fault = str(error)
    # One inode, size and time mean that the machines share a file system, where one process can check files for all.
    status = path.stat() if manifest else None
    identity = (status.st_ino, status.st_size, status.st_mtime_ns) if status else None
    digest = manifest.digest if manifest else None
    hosts = _gather_by_host({"fault": fault, "digest": digest, "identity": identity}, runtime)
    for host, facts in hosts.items():
        if facts["fault"]:
            raise UserError(f"on {host}: {facts['fault']}")
    if len({facts["digest"] for facts in hosts.values()}) > 1:
        values = _values_by_host({host: str(facts["digest"])[:12] for host, facts in hosts.items()})
        raise UserError(
            f"{root}: the machines have different datasets (digest {values}); copy one of them to the others, or give "
            "data.path on a file system that they share"
        )
    assert manifest is not None
    return manifest, len({facts["identity"] for facts in hosts.values()}) == 1


def require_shared(directory: Path, runtime: Runtime, timeout_minutes: float) -> None:
    """Refuse a run directory that not all machines see; it exists on rank 0's machine. A collective call.

    timeout_minutes: how long a process waits for another.
    """
    if runtime.world_size == runtime.local_world_size:
        return
    path = directory / ".shared"

    def write() -> str:
        # A random token, since a file of this name may be there from an earlier run.
        token = uuid.uuid4().hex
        write_atomically(path, token.encode())
        return token

    token = runtime.on_rank_0(write)

    def is_there() -> bool:
        try:
            return path.read_text(encoding="utf-8") == token
        except OSError:
            return False

    seconds = environment.patience(timeout_minutes)
    by_host = _gather_by_host({"seen": environment.wait_until(is_there, seconds)}, runtime)
    # The exchange above is over, so no process looks for the file any more.
    if runtime.rank == 0:
        path.unlink(missing_ok=True)
    apart = [host for host, facts in by_host.items() if not facts["seen"]]
    if apart:
        raise UserError(
            f"run.dir={directory}: files of {next(iter(by_host))} are not there on {_names_text(apart)} after "
            f"{seconds:.0f} s; give run.dir on a file system that all machines share"
        )


def on_each_machine(runtime: Runtime, shared: bool, action: Callable[[], None]) -> None:
    """Run `action` on rank 0 or, if files are not shared, on one process of each machine; a collective call."""
    if shared:
        runtime.on_rank_0(action)
        return
    fault = None
    if runtime.rank % runtime.local_world_size == 0:
        try:
            action()
        except UserError as error:
            fault = str(error)
    # Wait without a limit, since the action may take longer than the exchange below allows.
    runtime.wait_for_all()
    for host, facts in _gather_by_host({"fault": fault}, runtime).items():
        if facts["fault"]:
            raise UserError(f"on {host}: {facts['fault']}")


def _gather_by_host(facts: Mapping[str, object], runtime: Runtime) -> dict[str, Json]:
    """Return the facts of each machine's first process by the machine's name, and those of processes that differ."""
    hosts: dict[str, Json] = {}
    for rank, (host, of_rank) in enumerate(runtime.gather_objects((socket.gethostname(), dict(facts)))):
        is_another = rank % runtime.local_world_size == 0 and host in hosts  # another machine of the same name
        differs = hosts.get(host, of_rank) != of_rank
        hosts.setdefault(f"{host} (process {rank})" if is_another or differs else host, of_rank)
    return hosts


def _values_by_host(values: Mapping[str, str]) -> str:
    """Return the values with the machines that have them, such as `0.1 on a, 0.2 on b and c`."""
    hosts: dict[str, list[str]] = defaultdict(list)
    for host, value in values.items():
        hosts[value].append(host)
    return ", ".join(f"{value} on {_names_text(names)}" for value, names in hosts.items())


def _names_text(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return " and ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
