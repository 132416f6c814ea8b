"""MLPerf Training's log: `:::MLLOG` lines, written by the mlperf-logging package from a run's events."""

import logging
import os
import time
from operator import attrgetter
from pathlib import Path
from typing import Any

from app.config.app_config import AppConfig
from app.config.train import samples_of, steps_per_epoch
from app.metrics.documents import EvaluationEvent, Event, TrainEvent
from app.record.documents import Summary
from app.trackers import Setting
from common.command import RedactingFormatter
from common.documents import Json, decode
from common.files import write_atomically
from extensions.mlperf import fill_defaults

OPTIMIZERS = {"adam": "Adam", "rowwise_adagrad": "RowWiseAdagrad"}  # names that the rules have for ours
PRECISIONS = {"bf16": "bfloat16"}
BY_PRECISION = ("bf16", "fp16", "fp32")  # lowest first: 8, 11 and 24 bits of a significand


def values_of_hstu(keys: Any, config: AppConfig, world_size: int) -> Json:
    """Return the values that the rules for DLRMv4 (Training 6.1) require."""
    optimizer, arithmetic = config.optimizer, config.runtime.precision
    dense_name, sparse_name = optimizer.dense_name.value, optimizer.name.value
    precision = "fp32" if arithmetic is None else arithmetic
    qcomm = config.sharding.qcomm
    # The rules ask for the lowest precision of any exchange.
    comm_precision = min(qcomm.forward, qcomm.backward, key=BY_PRECISION.index)
    return {
        keys.OPT_NAME: OPTIMIZERS.get(dense_name, dense_name),
        keys.OPT_BASE_LR: optimizer.lr,
        keys.OPT_ADAM_BETA_1: optimizer.beta1,
        keys.OPT_ADAM_BETA_2: optimizer.beta2,
        keys.OPT_ADAM_EPSILON: optimizer.eps,
        keys.OPT_WEIGHT_DECAY: 0.0,
        keys.OPT_GRADIENT_CLIP_NORM: optimizer.max_grad_norm,
        keys.OPT_SPARSE_NAME: OPTIMIZERS.get(sparse_name, sparse_name),
        keys.OPT_SPARSE_BASE_LR: optimizer.table_lr,
        keys.OPT_LR_WARMUP_STEPS: config.schedule.warmup_steps,
        keys.OPT_LR_WARMUP_START_LR: 0.0,
        keys.MAX_SEQUENCE_LENGTH: attrgetter("sequences.hstu.max_seq_len")(config),
        keys.EVAL_EVERY_DATA_PCT: config.train.eval_every_fraction,
        keys.LOWEST_NUMERICAL_PRECISION_IN_LINEAR: PRECISIONS.get(precision, precision),
        keys.LOWEST_NUMERICAL_PRECISION_IN_ATTN: PRECISIONS.get(precision, precision),
        keys.LOWEST_NUMERICAL_PRECISION_IN_COMM: PRECISIONS.get(comm_precision, comm_precision),
        keys.TENSOR_PARALLELISM: 1,
        keys.PIPELINE_PARALLELISM: 1,
        keys.CONTEXT_PARALLELISM: 1,
        keys.EXPERT_PARALLELISM: 1,
        keys.MICRO_BATCH_SIZE: config.train.global_batch_size // world_size,
        keys.CONFIG_FILENAME: "config.yaml",
    }


PREFIX = ":::MLLOG "
TRAIN_LOSS = "train_loss"  # key of DLRMv4's reference, which the package lacks
SOURCES = Path(__file__).parents[2]
_ADAGRAD: dict[str, str | int] = {
    "opt_adagrad_learning_rate_decay": 0,
    "opt_adagrad_initial_accumulator_value": 0,
    "opt_adagrad_epsilon": "optimizer.eps",
}
# Values of an optimizer that the rules for DLRM log: a number, or the key that has it.
OF_OPTIMIZERS: dict[str, dict[str, str | int]] = {
    "adagrad": _ADAGRAD,
    "rowwise_adagrad": _ADAGRAD,
    "sgd": {  # rules 0.7 to 2.1
        "sgd_opt_base_learning_rate": "optimizer.lr",
        "sgd_opt_learning_rate_decay_poly_power": 2,
        "sgd_opt_learning_rate_decay_steps": "schedule.decay_steps",
        "lr_decay_start_steps": "schedule.decay_start_step",
    },
}
_IMPORTED_AT = time.time()


def process_start() -> float:
    """Return the start of this process in seconds since 1970, or else when this module was imported."""
    try:
        # The start is field 22, in ticks since the boot. A process's name, field 2, may have blanks and brackets in it,
        # so fields are counted from field 3 on, behind the last bracket.
        ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return _IMPORTED_AT
    return time.time() - age


class MLPerf:
    """The log of one run. A resumed run first cuts it back to the step where it starts.

    Runs on events follow DLRMv4's rules and reference: they log blocks between evaluations, and training losses. Other
    runs log epochs.
    """

    def __init__(self, setting: Setting) -> None:
        """Begin the log, or continue the log of a resumed run."""
        from mlperf_logging.mllog import constants, mllog  # imported only if wanted, like other clients

        self._keys = constants
        path, config, from_step = setting.file, setting.config, setting.from_step
        self._config, self._rows, self._world_size = config, setting.rows, setting.world_size
        self._steps_per_epoch = max(1, steps_per_epoch(config.train, self._rows["train"]))
        kept_lines, entries = _lines_until(path, from_step, self._steps_per_epoch) if from_step else ([], [])
        # A resumed run knows only from the lines that are left which block or epoch is open.
        steps = [step for key, step in entries if key == constants.EVAL_ACCURACY]
        self._evaluated = steps[-1] if steps else None
        self._by_block = config.model.name == "hstu"
        starts, stops = (constants.BLOCK_START, constants.EPOCH_START), (constants.BLOCK_STOP, constants.EPOCH_STOP)
        parts = [key for key, _ in entries if key in (*starts, *stops)]
        self._epoch, self._is_open = parts.count(constants.EPOCH_STOP), bool(parts) and parts[-1] in starts
        # Step, and milliseconds since 1970, at which a block or an epoch would start.
        self._part_from = (from_step, int(time.time() * 1000))
        write_atomically(path, "".join(kept_lines).encode())
        self._handler = logging.FileHandler(path, encoding="utf-8")
        self._handler.setFormatter(RedactingFormatter("%(message)s", is_terminal=False))
        logger = logging.Logger("mllog")  # a separate logger, so that lines neither leave nor enter it
        logger.addHandler(self._handler)
        self._log = mllog.MLLogger(logger, root_dir=str(SOURCES))
        if not kept_lines:
            self._log_start()

    def event(self, event: Event) -> None:
        """Log an evaluation from its start, and the end of an epoch before it; with blocks, also losses."""
        keys, step, metadata = self._keys, event.step, self._metadata_at(event.step)
        if isinstance(event, TrainEvent):
            self._start_part()
            if self._by_block:
                self._log.event(TRAIN_LOSS, event.loss, metadata={**metadata, "lr": event.lr})
        # A run that was killed after an evaluation may evaluate again.
        if not isinstance(event, EvaluationEvent) or event.event != "eval" or step == self._evaluated:
            return
        # The event comes after the evaluation, whose start is reckoned back from its duration.
        self._evaluated, began = step, int((time.time() - (event.eval_seconds or 0.0)) * 1000)
        self._start_part()
        if self._by_block:
            self._stop_part(step, began)
        self._log.start(keys.EVAL_START, metadata=metadata, time_ms=began)
        self._log.event(keys.EVAL_ACCURACY, event.auc, metadata=metadata)
        self._log.end(keys.EVAL_STOP, metadata=metadata)
        self._part_from = (step, int(time.time() * 1000))
        # Several epochs may have ended since the last evaluation.
        while not self._by_block and step >= (self._epoch + 1) * self._steps_per_epoch:
            self._start_part()
            self._stop_part(step, int(time.time() * 1000))

    def close(self, summary: Summary | None) -> None:
        """Log the end of the run: success if a target was reached, else aborted. An interrupted run has no end yet."""
        if summary is not None and summary.status != "interrupted":
            keys, step = self._keys, summary.steps
            if self._is_open:
                self._stop_part(step, int(time.time() * 1000))
            result = keys.SUCCESS if summary.status == "target_reached" else keys.ABORTED
            metadata = {keys.STATUS: result, "step": step, "samples_count": summary.samples}
            self._log.end(keys.RUN_STOP, metadata=metadata)
        self._handler.close()

    def _metadata_at(self, step: int) -> Json:
        """Return a line's epochs, step and samples so far; with blocks, epochs count samples as the reference does."""
        samples = samples_of(self._config.train, self._rows["train"], step)
        epochs = samples / max(1, self._rows["train"]) if self._by_block else step / self._steps_per_epoch
        return {self._keys.EPOCH_NUM: epochs, "step": step, "samples_count": samples}

    def _start_part(self) -> None:
        """Start the block or epoch after the last evaluation, once training is known to continue."""
        if self._is_open:
            return
        keys, (step, began) = self._keys, self._part_from
        metadata = self._metadata_at(step) if self._by_block else {keys.EPOCH_NUM: self._epoch + 1, "step": step}
        self._log.start(keys.BLOCK_START if self._by_block else keys.EPOCH_START, metadata=metadata, time_ms=began)
        self._is_open = True

    def _stop_part(self, step: int, ended: int) -> None:
        """Log the end of the open block or epoch; ended: milliseconds since 1970."""
        keys, metadata = self._keys, self._metadata_at(step)
        if not self._by_block:
            self._epoch += 1
            metadata = {keys.EPOCH_NUM: self._epoch, "step": step}
        self._log.end(keys.BLOCK_STOP if self._by_block else keys.EPOCH_STOP, metadata=metadata, time_ms=ended)
        self._is_open = False

    def _log_start(self) -> None:
        """Log the submission, the run's settings, and that initialisation ends and training starts."""
        keys, config = self._keys, self._config
        self._log.event(keys.CACHE_CLEAR, True, metadata={"step": 0})
        self._log.start(keys.INIT_START, metadata={"step": 0}, time_ms=int(process_start() * 1000))
        submission = fill_defaults(config)
        values = {
            keys.SUBMISSION_BENCHMARK: submission.benchmark,
            keys.SUBMISSION_ORG: submission.organization,
            keys.SUBMISSION_DIVISION: submission.division,
            keys.SUBMISSION_PLATFORM: submission.platform,
            keys.SUBMISSION_STATUS: submission.status,
            keys.SEED: config.train.seed,
            keys.GLOBAL_BATCH_SIZE: config.train.global_batch_size,
            keys.TRAIN_SAMPLES: self._rows["train"],
            keys.EVAL_SAMPLES: self._rows[config.eval.split],
            keys.GRADIENT_ACCUMULATION_STEPS: 1,
            **(values_of_hstu(keys, config, self._world_size) if self._by_block else values_of_dlrm(keys, config)),
        }
        for key, value in values.items():
            self._log.event(key, value, metadata={"step": 0})
        self._log.end(keys.INIT_STOP, metadata={"step": 0})
        self._log.start(keys.RUN_START, metadata={"step": 0})
        # The first epoch begins here, after initialisation; blocks begin with their first loss.
        if not self._by_block:
            self._part_from = (0, int(time.time() * 1000))
            self._start_part()


def values_of_dlrm(keys: Any, config: AppConfig) -> Json:
    """Return what a run of DLRM logs by the log's keys: optimizer, learning rate and schedule."""
    optimizer, schedule = config.optimizer, config.schedule
    values: Json = {
        keys.OPT_NAME: optimizer.name.value,
        keys.OPT_BASE_LR: optimizer.lr,
        keys.OPT_WEIGHT_DECAY: 0,
        keys.OPT_LR_WARMUP_STEPS: schedule.warmup_steps,
        keys.OPT_LR_DECAY_START_STEP: schedule.decay_start_step,
        keys.OPT_LR_DECAY_STEPS: schedule.decay_steps,
    }
    for key, value in OF_OPTIMIZERS.get(optimizer.name.value, {}).items():
        values[key] = attrgetter(value)(config) if isinstance(value, str) else value
    return values


def _lines_until(path: Path, step: int, epoch_steps: int) -> tuple[list[str], list[tuple[str, int]]]:
    """Return a log's lines up to a step, without an end of the run, and the key and step of each.

    A line cut off by a kill is left out.
    """
    if not path.exists():
        return [], []
    lines, entries = [], list[tuple[str, int]]()
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        try:
            entry = decode(line.partition(PREFIX)[2], dict[str, Any])
            key, at, epochs = entry["key"], int(entry["metadata"]["step"]), entry["metadata"].get("epoch_num", 0)
        except (ValueError, KeyError):
            continue
        # A run that ends within an epoch stops that epoch in the log. If it goes on, the epoch is still open.
        is_partial = key == "epoch_stop" and at < epochs * epoch_steps
        is_kept = at <= step and key != "run_stop" and not is_partial
        if is_kept and line.endswith("\n"):
            lines.append(line)
            entries.append((key, at))
    return lines, entries
