"""The record of a run: its description, its events, and its summary."""

import sys
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from msgspec import UNSET, structs

from app.config.app_config import AppConfig
from app.config.kinds import AUC, LOGLOSS, METRICS, NE, OF_ROWS
from app.config.sharding import Plan
from app.config.train import TrainConfig
from app.metrics import quality
from app.metrics.documents import EvaluationEvent, EvaluationFigures, Event, Measured, TrainEvent
from app.metrics.timing import PHASES, EnergyMeter, StepTimer, memory_in_use, throughput
from app.model.embeddings import TableArch, parameter_counts
from app.record import provenance
from app.record.directory import ProgressDisplay, RunDirectory
from app.record.documents import SUMMARY_VERSION, Dataset, RunManifest, Summary, TableSize
from app.runtime.platform import Runtime
from app.sharding import planner
from app.trackers import FILES, Setting, Trackers
from app.training.session import Session, TableMeter, mean_loss
from app.training.state import RunLength, RunState
from common.cli import colour_text
from common.command import redact
from common.documents import Json, plain
from common.extensions import absence
from common.files import digest_file
from data_prep.dataset.format import Manifest, sampling_sentence, unseen_sentence
from data_prep.dataset.kinds import misleading_sentences

CHOOSE_ROWS = (  # keys of a manifest's `encoding`
    *("split", "held_out", "split_seed", "split_column", "train_seed", "test_first"),
    *("negative_drop_rate", "sampling_seed"),
)
MAX_SOURCES = 30  # names of raw files in a manifest


def rows_digest(manifest: Manifest, split: str) -> str:
    """Return a digest of a split's rows under any encoding: labels, weights, raw files, and what chose the rows.

    Labels alone do not tell rows apart: two files may have the same labels in the same order.
    """
    shards, sources = manifest.splits[split].shards, manifest.sources
    parts = [shard.files[kind].sha256 for kind in ("labels", "weights") for shard in shards if kind in shard.files]
    parts += [str(source.get("sha256")) for source in sources if source.get("split", split) == split]
    parts += [f"{key}={manifest.encoding[key]}" for key in CHOOSE_ROWS if sources and manifest.encoding.get(key)]
    return sha256("".join(parts).encode()).hexdigest()


def describe_tables(arch: TableArch, bag_sizes: Mapping[str, float]) -> dict[str, TableSize]:
    """Return the size of each whole table and the mean ids looked up in it; bytes are of its weights alone."""
    return {
        table.name: TableSize(
            features=len(table.keys),
            by_id=table.by_id,  # rows travel, not sums of them
            ids_per_sample=sum(bag_sizes.get(arch.feature_of[key], 1.0) for key in table.keys),
            num_embeddings=table.num_embeddings,
            embedding_dim=table.embedding_dim,
            bytes=table.bytes,
        )
        for table in arch.tables
    }


def launch_manifest(
    config: AppConfig,
    runtime: Runtime,
    dataset: Dataset,
    plan: Plan,
    tables: dict[str, TableSize],
    files: dict[str, str],
) -> RunManifest:
    """Return the manifest of a launch that trains nothing; a run that trains sets what it knows besides."""
    return RunManifest(
        **structs.asdict(provenance.describe_run(config.environment.variables)),
        dataset=dataset,
        files=files,
        seeds={"train.seed": config.train.seed},
        world_size=runtime.world_size,
        platform=runtime.platform,
        num_threads=runtime.num_threads,
        compile="none",
        local_world_size=runtime.local_world_size,
        plan={**plan.tables},
        began=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        pipeline=None,
        tables=tables,
        from_step=0,
        results_before=0,  # both are set when the directory is opened
    )


COLOURS = {"completed": "green", "target_reached": "green", "interrupted": "yellow", "failed": "red"}


def local_summary(
    train: TrainConfig,
    state: RunState,
    samples: int,
    parameters: dict[str, int],
    world_size: int,
    is_logloss: bool,
    seconds: dict[str, float],
) -> Summary:
    """Return the figures that one process knows without the others, as of a completed run; callers set the others.

    samples: of all steps and processes. is_logloss: whether the loss is the logloss. seconds: spent, by kind.
    """
    losses, step_seconds, measured = state.all_losses(), state.all_step_seconds(), state.measured
    # The last batch of an epoch may be smaller than the others, so this is the mean over all steps.
    batch_size = samples / max(state.step, 1)
    excluded = len(losses) - len(step_seconds)
    last = losses[-train.log_every_steps :]
    loss, newest = mean_loss(last), state.evaluation or undefined_evaluation()
    return Summary(
        status="completed",
        version=SUMMARY_VERSION,
        steps=state.step,
        samples=samples,
        world_size=world_size,
        parameters=parameters,
        train={"loss": loss, "logloss": loss if is_logloss else None, "skipped_steps": state.skipped},
        best=state.best,
        early_stop=None,  # the run decides it at its end
        eval=newest,
        last=newest,
        throughput=throughput(step_seconds, measured.input_wait, batch_size, measured.devices(), excluded),
        covers={
            "train": {"steps": len(last)},
            "throughput": {"steps": len(step_seconds)},
            "phase_seconds": {"steps": measured.phase_steps},
            "power": {"seconds": measured.energy_seconds},
            "memory": {"launches": "last"},
        },
        memory={"host_peak_bytes": provenance.host_peak_bytes(), "device_peak_bytes": None},
        seconds={**seconds},
        digest={"parameters": None, "losses": None},
    )


def undefined_evaluation() -> EvaluationFigures:
    """Return an evaluation whose figures are all None."""
    undefined: Json = {name: None for name in OF_ROWS if name != AUC}
    return EvaluationFigures(auc=None, rest=undefined)


def throughput_spread(state: RunState, window: int) -> float | None:
    """Return the throughput's standard deviation over its mean, of windows of `window` steps; None below two."""
    seconds = state.all_step_seconds()
    rates = [1 / seconds[i : i + window].mean() for i in range(0, len(seconds) - window + 1, window)]
    return float(np.std(rates) / np.mean(rates)) if len(rates) > 1 else None


def closing_lines(summary: Summary, session: Session, state: RunState, measured_before: int) -> list[str]:
    """Return a summary as lines of text; measured_before: steps that were measured before the run was resumed."""
    config, encoding = session.config, session.manifest.encoding.get("name")
    evaluations, keeps_best = summary.events.get("eval", 0), config.checkpoint.keep_best
    remarks = quality.shortcomings(summary.last, summary.best, evaluations, keeps_best, encoding)
    ne = summary.eval.figure(NE)
    # Before the end of an epoch, or with class weights, an NE above 1 is no sign of a fault.
    if state.epoch and not config.loss.class_weights and not remarks and ne is not None and ne >= 1:
        remarks = [
            f"After an epoch no better than the base rate, the same probability for each row: NE {ne:.5f} is not below "
            "1; train for more steps (train.epochs), or with another optimizer.lr or optimizer.sparse_lr"
        ]
    rows = [("to resume", "saved; the same command resumes from here")] if summary.status == "interrupted" else []
    rows += _quality_rows(summary)
    if summary.early_stop:
        rows.append(("early stop", summary.early_stop.reason))
    rows += [("attention", colour_text(remark, "yellow", sys.stderr)) for remark in remarks]
    rows += _cost_rows(summary, measured_before)
    width, seconds = max(len(name) for name, _ in rows), summary.seconds.get("total", 0.0)
    head = f"{summary.status}: {summary.steps:,} steps, {summary.samples:,} samples in {seconds:.1f} s"
    return [
        colour_text(head, COLOURS.get(summary.status, "bold"), sys.stderr),
        *(f"  {colour_text(name.ljust(width), 'dim', sys.stderr)}  {text}" for name, text in rows),
    ]


def _quality_rows(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield name and text: the served model's evaluation, if there was one; the last and the best if they differ."""
    evaluation, last, best = summary.eval, summary.last, summary.best
    if evaluation.figure(evaluation.main) is None and evaluation.figure(LOGLOSS) is None:
        return
    values = [(metric.label, evaluation.figure(metric.name)) for metric in METRICS.values() if metric.in_summary]
    figures = [f"{label} {value:.5f}" for label, value in values if value is not None]
    is_last = evaluation.step == last.step
    of = "" if is_last else f", of the best checkpoint, step {evaluation.step:,}"
    yield "evaluation", f"{', '.join(figures)} ({evaluation.split}, {evaluation.samples:,} samples{of})"
    if not is_last and (value := last.figure(last.main)) is not None:
        yield f"last {METRICS[last.main].label}", f"{value:.5f} at step {last.step:,} (checkpoint=last)"
    if best is not None and best.of_monitor is not None and evaluation.step not in (None, best.step):
        yield f"best {best.label}", f"{best.of_monitor:.5f} at step {best.step:,}"


def _cost_rows(summary: Summary, measured_before: int) -> Iterator[tuple[str, str]]:
    """Yield name and text: throughput and step times, if any step was measured, then time, memory and power."""
    rates, seconds, memory = summary.throughput, summary.seconds, summary.memory or {}
    if (rate := rates["samples_per_second"]) is not None:
        before = f", {measured_before:,} of them before the resumption" if measured_before else ""
        per_device = f"{rates['samples_per_second_per_device']:,.0f} per device"
        steps = f"(over {rates['steps_measured']:,} steps{before})"
        yield "throughput", f"{rate:,.0f} samples/s global, {per_device} {steps}"
        times = f"p50 {rates['step_ms_p50']:.2f} ms, p95 {rates['step_ms_p95']:.2f} ms"
        phases = [f"{name} {mean * 1e3:.2f} ms" for name, mean in (summary.phase_seconds or {}).items() if mean]
        of_phases = f"; {', '.join(phases)}" if phases else ""
        yield "step", f"{times}; waiting for input {rates['input_wait_fraction']:.1%}{of_phases}"
    kinds = (("train", "training"), ("eval", "evaluation"), ("checkpoint", "checkpoints"))
    rest = max(0.0, seconds.get("total", 0.0) - sum(seconds[key] for key, _ in kinds))
    times = ", ".join(f"{label} {seconds[key]:.1f} s" for key, label in kinds)
    yield "time", f"{times}, start (imports, data, model) and end {rest:.1f} s"
    peaks = ((kind, memory.get(f"{kind}_peak_bytes")) for kind in ("host", "device"))
    if peak_texts := [f"{kind} {peak / 2**20:,.0f} MiB" for kind, peak in peaks if peak]:
        yield "peak memory", ", ".join(peak_texts)
    if summary.power:
        yield "power", f"{summary.power['mean_watts']:,.1f} W ({summary.power['source']})"


class Recorder:
    """Reports a session's run to its directory, to other tools and to the terminal."""

    def __init__(
        self, session: Session, directory: RunDirectory, timer: StepTimer, length: RunLength, began: float
    ) -> None:
        """began: time.perf_counter() when the command began."""
        self.directory, self.trackers = directory, Trackers()
        self.energy = EnergyMeter(session.runtime.device)
        self._energy_of_window = Measured()  # energy since the last event
        self.seconds_before: dict[str, float] = {}  # seconds before a resumption, by kind
        self._session, self._timer, self.began, self._state = session, timer, began, RunState()
        may_end_early = session.config.train.early_stop_patience is not None
        self._progress = ProgressDisplay(length.total_steps, session.runtime.rank == 0, may_end_early)

    def begin(self, state: RunState, continues: bool, pipeline: str) -> None:
        """Write the run's configuration and manifest, and open its trackers; a collective call.

        continues: whether the state is from this run's own checkpoint; the record up to there then stays.
        """
        session, directory, self._state = self._session, self.directory, state
        # People share the files of a run, so passwords in URLs must not reach them.
        values, manifest = redact(plain(session.config)), self._manifest(pipeline)
        evaluated = state.evaluation is not None and state.evaluation.step == state.step
        # The rows of train include drawn negatives.
        rows = {**session.split_rows(), "train": session.split("train").rows}
        runtime = session.runtime
        runtime.on_rank_0(lambda: directory.begin(values, manifest, state.step, evaluated, not continues, FILES))
        if directory.is_tracked:
            setting = Setting(directory.path, session.config, values, rows, runtime.world_size, state.step)
            runtime.on_rank_0(lambda: self.trackers.start(setting))

    def measure_energy(self) -> None:
        """Count the energy that all processes' devices used since the last call; a collective call.

        On CPUs one process of each machine counts for all, because the meter covers the whole machine.
        """
        lap, runtime = self.energy.lap(), self._session.runtime
        counts = runtime.device.type != "cpu" or runtime.rank % runtime.local_world_size == 0
        own_energy = np.array([lap[0] if counts else 0.0, lap[1]] if lap is not None else [np.nan, np.nan])
        energies = np.stack(runtime.gather(own_energy))
        # A sum without one of the meters would be too low. Seconds are not added, since all meters run at once.
        if np.isfinite(energies).all():
            energy = Measured(joules=float(energies[:, 0].sum()), energy_seconds=float(energies[:, 1].max()))
            self._state.measured.add(energy)
            self._energy_of_window.add(energy)

    def start(self, step: int) -> None:
        """Start the progress display and the energy meter; `step` steps were done before."""
        self._progress.start(step)
        self.energy.start()

    def seconds(self) -> dict[str, float]:
        """Return the seconds spent so far, before a resumption too: total, and of it train, eval and checkpoint."""
        seconds_by_kind = {"total": time.perf_counter() - self.began, **self._timer.seconds}
        return {kind: value + self.seconds_before.get(kind, 0.0) for kind, value in seconds_by_kind.items()}

    def event(self, event: Event) -> None:
        """Append an event, with samples and seconds so far, to metrics.jsonl and show it in the trackers."""
        event.samples, event.seconds = self._session.samples(event.step), self.seconds()["total"]
        self.directory.event(event)
        self.trackers.event(event)

    def steps(self, state: RunState, event: TrainEvent) -> None:
        """Report a window of steps; the state's step is the last of them."""
        # Energy is counted before the event is completed, so that it belongs to this window.
        self.measure_energy()
        event.watts, self._energy_of_window = self._energy_of_window.watts, Measured()
        event.host_bytes, event.device_bytes = memory_in_use(self._session.runtime.device)
        self.event(event)
        self._progress.update(event, state.evaluation)

    def evaluation(self, kind: str, step: int, result: EvaluationFigures, seconds: float | None = None) -> None:
        """Report a split's metrics, and the seconds that they took; a collective call. kind: eval or eval_train."""
        self.measure_energy()
        self._energy_of_window = Measured()  # the next window has the energy of its steps alone
        event = EvaluationEvent(
            event=kind,
            step=step,
            eval_samples=result.samples,
            split=result.split,
            auc=result.auc,
            rest=result.rest,
            eval_seconds=seconds,
        )
        self.event(event)

    def close(self) -> None:
        """Leave the progress display as it stands."""
        self._progress.close()

    def summarise(self, status: str, served: EvaluationFigures | None, communication_seconds: float | None) -> Summary:
        """Return the content of summary.json; a collective call.

        served: the served model's evaluation, on rank 0. communication_seconds: of a step's exchanges on this process;
        None if they were not measured.
        """
        session, state, summary = self._session, self._state, self.local_summary(status, served)
        config, runtime = session.config, session.runtime
        device_peak = torch.cuda.max_memory_allocated() if runtime.device.type == "cuda" else None
        summary.memory = {
            "host_peak_bytes": int(runtime.highest(provenance.host_peak_bytes())),
            "device_peak_bytes": None if device_peak is None else int(runtime.highest(device_peak)),
        }
        exchanged = runtime.highest(communication_seconds or 0.0) or None
        measured, steps = state.measured, state.measured.phase_steps
        means = {name: measured.phases.get(name, 0.0) / steps if steps else None for name in PHASES}
        summary.phase_seconds = {**means, "communication": exchanged}
        if measured.watts is not None:
            summary.power = {"mean_watts": measured.watts, "joules": measured.joules, "source": self.energy.source}
        # Where rows change only when a step looks them up, those that differ from the initial values were looked up.
        counts_touched = not config.optimizer.sparse_weight_decay and config.checkpoint.resume in ("auto", "never")
        meter = TableMeter(session.model.module.sparse_arch.tables, config.train.seed, counts_touched)
        losses = sha256(state.all_losses().tobytes()).hexdigest()
        summary.digest = {"parameters": session.parameters_digest(meter), "losses": losses}
        summary.tables = meter.figures()
        return summary

    def local_summary(self, status: str, served: EvaluationFigures | None) -> Summary:
        """Return the figures that this process knows without the others; served: as of `summarise`."""
        session, state = self._session, self._state
        samples, counts = session.samples(state.step), parameter_counts(session.model)
        world_size, train = session.runtime.world_size, session.config.train
        summary = local_summary(train, state, samples, counts, world_size, session.is_logloss, self.seconds())
        summary.no_baselines = None if session.config.baselines is False else absence("baselines")
        summary.status, summary.eval = status, served or summary.eval
        return summary

    def _manifest(self, pipeline: str) -> RunManifest:
        """Return the manifest of this launch, which the run's directory completes."""
        session, manifest, runtime = self._session, self._session.manifest, self._session.runtime
        arch = session.model.module.sparse_arch
        embeddings = getattr(arch, "embeddings", [])  # a log's tables are no Embeddings
        paths = [path for embedding in embeddings for path in embedding.files]
        dataset = Dataset(
            path=str(session.root),
            digest=manifest.digest,
            rows=session.split_rows(),
            labels={name: rows_digest(manifest, name) for name in manifest.splits if not manifest.kind.windows},
            label_rate=manifest.label_rate,
            encoding=manifest.encoding.get("name"),
            sources=[source.get("name") for source in manifest.sources[:MAX_SOURCES]],
            source_md5=manifest.extra.get("source_md5"),
            bayes=manifest.extra.get("bayes"),  # figures of a ground-truth model, if there is one
            unseen=unseen_sentence(manifest),
            misleading=misleading_sentences(manifest.extra),
            sampling=sampling_sentence(manifest, session.config.loss.class_weights),
        )
        bag_sizes = planner.bag_sizes_of(session.config, session.root, manifest)
        # The files that initial values came from.
        files = {path: digest_file(Path(path)).sha256 for path in paths} if runtime.rank == 0 else {}
        launch = launch_manifest(
            session.config, runtime, dataset, session.plan, describe_tables(arch, bag_sizes), files
        )
        launch.pipeline, launch.compile, launch.parent = pipeline, session.compiled, self._state.parent or UNSET
        return launch
