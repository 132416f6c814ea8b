"""python -m app.train: prepare the data if need be, train, evaluate, write the run's directory.

Exit status: 0 done; 2 bad input or configuration; 75 stopped by a signal, or another process lost, with a checkpoint
(the same command resumes from there); 69 another process lost and no checkpoint; 128 + its number: a signal before the
first step, or a second one. Under `torchrun --nproc-per-node N -m app.train` it runs on N processes.
"""

if __name__ == "__main__":  # before the imports below, which may take seconds
    from app.commands import COMMANDS
    from common.cli import run

    run(COMMANDS["train"])


import os
import socket
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from app.checkpoint import files
from app.config.app_config import AppConfig
from app.config.kinds import AfterTraining
from app.config.train import require_graphs, with_evaluation_distance
from app.data import prepare
from app.data.split import TRAIN, verify_splits
from app.record import provenance
from app.record.directory import RunDirectory
from app.report.page import REPORT, write_report
from app.runtime import environment, platform
from app.runtime.platform import Runtime
from app.trackers import require_clients
from app.training import evaluator, meta_build, session
from app.training.loop import TrainingRun
from app.training.predictor import refuse_one_class, require_task
from app.training.state import require_rates, require_rows_to_evaluate, require_steps_left, require_validation
from common import signals
from common.cli import EXIT_DONE, EXIT_STOPPED, SECONDS
from common.command import log, redact
from common.documents import Json
from common.errors import UserError
from common.extensions import rows_of_extensions
from common.files import write_atomically
from common.keys import flat_values
from common.signals import Interrupted, StopRequest
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

    # Other processes wait meanwhile: for at most half their time-out.
    seconds = min(environment.SHARED_SECONDS, 30 * timeout_minutes)
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
    """Return the names of machines in words, and of many only the first ones and the number of the others."""
    more = len(names) - MOST_NAMED
    return " and ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


# For one process, and for several: one of several may be lost before they agree.
ANSWERS = ("stopping after this step and saving a checkpoint", "stopping as soon as all processes agree on the step")
LESS_MEMORY = "use a smaller train.global_batch_size or data.shuffle_window_blocks, or more processes"


def main(config: AppConfig) -> int:
    """Train as configured; return the exit status."""
    began = time.perf_counter()
    seconds: dict[str, float] = {}  # of each section, which the functions below add

    # Refuse what needs neither processes nor data, before either takes time.
    require_clients(config)
    for step in rows_of_extensions(AfterTraining):
        step.require(config)

    checkpoints = Path(config.run.dir) / files.CHECKPOINTS
    advice = LESS_MEMORY, lambda: files.resumption(checkpoints)
    only_built = meta_build.is_wanted(config)
    config = replace(config, train=replace(config.train, micro_batch_size=config.train.micro_batch))
    # A run that is only built computes nothing, so this machine need not have its precision.
    arithmetic = replace(config.runtime, precision=None) if only_built else config.runtime
    try:
        with platform.joined(replace(config, runtime=arithmetic), advice) as runtime:
            require_same_program(config, runtime)
            record = RunDirectory(Path(config.run.dir), runtime.rank)
            try:
                status = EXIT_DONE
                if only_built:
                    meta_build.write(config, runtime, record, began)
                else:
                    status = _train(config, runtime, record, began, seconds)
            finally:
                record.release()
    except Interrupted as error:  # raised before the first step only
        resumable, words = files.resumption(checkpoints)
        progress = words if resumable else "nothing was trained yet"
        raise Interrupted(error.signal, f"stopped before the first step; {progress}") from error

    # Extensions' steps follow after the process group is closed, so that the other processes need not wait.
    if status == EXIT_DONE and os.environ.get("RANK", "0") == "0":
        before = time.perf_counter()
        for step in rows_of_extensions(AfterTraining):
            step.finish(config)
        seconds["baselines"] = time.perf_counter() - before
        seconds["rest"] = time.perf_counter() - began - sum(seconds.values())
        if "training" in seconds:
            log.info("time: %s", ", ".join(f"{name} {value:.1f} s" for name, value in {**SECONDS, **seconds}.items()))
        if (report := Path(config.run.dir) / REPORT).exists():
            log.info("report: %s", report)  # last, where people see it
    return status


def _train(config: AppConfig, runtime: Runtime, record: RunDirectory, began: float, seconds: dict[str, float]) -> int:
    """Train from the beginning or a checkpoint to the end or a stop, and report; return the exit status."""
    run = _set_up(config, runtime, record, began, seconds)
    if run is None:
        return EXIT_DONE

    # The loop, with its evaluations and checkpoints, is in app/training/loop.py.
    status = None
    stop = StopRequest(ANSWERS[runtime.world_size > 1], lambda: files.resumption(record.checkpoints)[1])
    # A signal asks for a stop with a checkpoint from here on. Before, there is nothing to save.
    try:
        status = EXIT_STOPPED if run.train(stop) == "interrupted" else EXIT_DONE
        if status == EXIT_DONE:
            evaluator.keep_scores_of_served(run.session, record.path, run.state.step)
        stop.answer = "training has ended, the report is being written"
    finally:
        # A stopped or failed run has a report, too; a failure to write it does not fail the run.
        before = time.perf_counter()
        if runtime.rank == 0:
            try:
                path = write_report(record.path)
                if status != EXIT_DONE:  # else `main` names it, last
                    log.info("report: %s", path)
            except Exception as error:  # noqa: BLE001  # whatever it is, the run is complete
                fault = f"{type(error).__name__}: {error}"
                log.warning("report: not written (%s); its figures are in %s", fault, record.path)
        spent = run.timer.seconds
        seconds |= {"training": spent["train"], "evaluation": spent["eval"], "report": time.perf_counter() - before}

    # Let the others wait: torchrun asks all processes to end as soon as one has ended.
    runtime.highest(0.0)
    signals.finish(status)
    return status


def _set_up(
    config: AppConfig, runtime: Runtime, record: RunDirectory, began: float, seconds: dict[str, float]
) -> TrainingRun | None:
    """Do everything before the first step; return None if nothing is left to train. Raises Interrupted at a signal."""
    # Configuration: refuse what this machine cannot run, before anything is written.
    parts = config.model.parts
    if parts is not None:
        parts.require_device(config, runtime.device.type)
    require_graphs(config.runtime, runtime.device.type)

    # Record: one command at a time owns a run's directory; the run resumes from the newest checkpoint there.
    runtime.on_rank_0(record.open)
    require_shared(record.path, runtime, config.runtime.timeout_minutes)
    start = runtime.on_rank_0(lambda: files.choose(config.checkpoint, record.checkpoints))

    # Data: rank 0 makes the dataset if there is none. Every machine must see the same one, and checks its files last,
    # as reading them all may take minutes.
    root = config.data.root
    before = time.perf_counter()
    is_new = runtime.on_rank_0(lambda: prepare.prepare(config.data))
    seconds["data"] = time.perf_counter() - before
    manifest, is_shared = load_same_manifest(root, runtime, is_new)
    prepare.require_agreement(config.data, manifest)
    config = prepare.with_table_values(config, root, manifest)
    require_task(config, root, manifest)
    refuse_one_class(config.data, root, manifest)
    require_rows_to_evaluate(config, root, manifest)
    splits = list(dict.fromkeys(filter(None, [TRAIN, config.eval.split, evaluator.kept_split(config.eval, manifest)])))
    on_each_machine(runtime, is_shared, lambda: verify_splits(root, manifest, splits, config.data))
    prepare.warn(root, manifest, is_new, config.loss.class_weights)

    # Model, optimizer and loss, by a configuration that the processes, the dataset and the machine complete.
    data = replace(prepare.keep_recorded_settings(config.data, manifest), path=str(root))
    used = replace(config.runtime, num_threads=runtime.num_threads)
    completed = replace(config, data=data, runtime=used)
    trained = session.build(completed, runtime, root, manifest)

    # Evaluation: its distance in steps may be left to the length of an epoch. This completes the configuration: the
    # run, which puts together loop, evaluations, checkpoints and record, works by it and records it.
    steps_per_epoch = trained.split(TRAIN).num_batches(trained.config.train.global_batch_size)
    train = with_evaluation_distance(trained.config.train, steps_per_epoch)
    trained.config = replace(trained.config, train=train)
    run = TrainingRun(trained, record, began)

    # Checks that had to wait: the windows of a log of events, and so its labels, are known only once it is open.
    if manifest.kind.windows:
        require_validation(config, trained.split_rows()[config.eval.split])
    if parts is not None:
        parts.require_labels(config, root, trained.split(TRAIN))

    # Checkpoint: start from it, unless the run has ended already or would end badly.
    if start is not None:
        run.restore(start)
        if (status := runtime.on_rank_0(run.status_if_done)) is not None:
            remedy = "give another run.name, or checkpoint.resume=never checkpoint.overwrite=true"
            log.info("%s: %s already, nothing to do; %s", record.path, status, remedy)
            return None
        require_steps_left(run.length, run.state.step, start)
    elif config.checkpoint.warm_start_from is not None:
        run.warm_start(config.checkpoint.warm_start_from)
    require_rates(run.length, config.schedule, run.state.step)
    run.checkpointer.require_space(run.state.step, run.length)

    # A run that resumes from an older checkpoint of its own removes the later ones, after all checks have passed.
    if start is not None and run.continues:
        best = run.state.best.step if run.state.best and config.checkpoint.keep_best else None
        runtime.on_rank_0(lambda: files.remove_later(record.checkpoints, start, best))
    return run
