"""A run's figures in the form of its documents, and their sums over launches.

A checkpoint has the sums since the run began, so they cover exactly the run's own steps, even if some were trained
again after a kill.

A figure that does not apply, or was not measured, is None. Needs no torch.
"""

from dataclasses import dataclass, field, fields

from msgspec import Struct

from app.config.kinds import AUC, COMPARED, COMPARED_NUMBERS, METRICS, TASKS
from app.config.train import Monitor
from common.documents import Figures, Number, OpenDocument, convert, decode


@dataclass
class Measured:
    """Sums over steps that count for throughput, and energy.

    Attributes:
        seconds: of all steps except the first ones of each launch, by the clock of the process that records.
        device_seconds: seconds times the devices that computed meanwhile.
        input_wait: the part of seconds that was spent waiting for batches.
        phase_steps: steps whose phases were timed.
        phases: seconds of these steps by phase, on the slowest process in each window.
        joules, energy_seconds: energy of the devices, and the seconds in which it was metered, evaluations included.
    """

    seconds: float = 0.0
    device_seconds: float = 0.0
    input_wait: float = 0.0
    phase_steps: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    joules: float = 0.0
    energy_seconds: float = 0.0

    def add(self, other: "Measured") -> None:
        """Add another's sums to these, and its phases by name."""
        for key in fields(self):
            if key.name != "phases":
                setattr(self, key.name, getattr(self, key.name) + getattr(other, key.name))
        for name, seconds in other.phases.items():
            self.phases[name] = self.phases.get(name, 0.0) + seconds

    def devices(self) -> float:
        """Return the mean number of devices that computed at a time; 1 if nothing was measured."""
        return self.device_seconds / self.seconds if self.seconds else 1.0

    @property
    def watts(self) -> float | None:
        """Mean power; None if energy was not measured."""
        return self.joules / self.energy_seconds if self.energy_seconds else None


class Best(OpenDocument, kw_only=True):
    """The best evaluation of a run by train.monitor, with its AUC; by AUC, monitor and value are None."""

    step: int
    auc: Number | None
    monitor: str | None
    value: Number | None

    @property
    def label(self) -> str:
        """Label of the metric by which it is the best."""
        name = self.monitor or AUC
        return METRICS[name].label if name in METRICS else name

    @property
    def of_monitor(self) -> float | None:
        """Value of train.monitor."""
        return self.auc if self.monitor is None else self.value


class Monitored(OpenDocument, kw_only=True):
    """State of a run's train.monitor after its evaluations.

    best: highest value, negated if smaller is better; None before the first evaluation.
    misses: evaluations in a row, up to the last, without a gain. since_cut: misses since the last cut of the rate.
    cuts: number of cuts of the rate so far.
    """

    best: Number | None = None
    misses: int = 0
    since_cut: int = 0
    cuts: int = 0


class EarlyStop(OpenDocument, kw_only=True):
    """Early end of a run: evaluations in a row without a gain of train.monitor, the best value and its step."""

    monitor: str
    misses: int
    best_step: int | None
    best: Number | None

    @property
    def reason(self) -> str:
        """The reason in words."""
        best = "" if self.best is None else f"; the best was {self.best:.5f} at step {self.best_step:,}"
        times = "at the last evaluation" if self.misses == 1 else f"at {self.misses} evaluations in a row"
        return f"no gain of train.monitor={self.monitor} {times}{best}"


class EvaluationFigures(OpenDocument, kw_only=True):
    """The metrics of a split: the AUC, and all others as further keys, as numbers, or None if undefined.

    step: the model was evaluated after it. samples: number of rows. All are None if there was no evaluation.
    """

    step: int | None = None
    split: str | None = None
    samples: int | None = None
    auc: Number | None

    @property
    def main(self) -> str:
        """Metric that the split is judged by: the AUC, or another one if labels are numbers."""
        return next((task.main for task in TASKS.values() if self.figure(task.main) is not None), AUC)

    @property
    def main_value(self) -> float | None:
        """Value of the main metric."""
        return self.figure(self.main)

    @property
    def is_measured(self) -> bool:
        """Whether the main metric has a value."""
        return self.main_value is not None

    @property
    def compared(self) -> tuple[str, ...]:
        """Return the metrics by which models of the split's labels are compared."""
        return COMPARED_NUMBERS if self.main in COMPARED_NUMBERS else COMPARED


class Parent(Struct, kw_only=True):
    """The run whose parameters a run began with: its directory, the step, and digests of state.json and of its dataset.

    updates: of the parameters so far, if the optimizer's state was taken; else 0. evaluation: the last one of that run.
    """

    run: str
    step: int
    checkpoint_sha256: str
    dataset: str
    updates: int
    evaluation: EvaluationFigures | None


class Curves(OpenDocument, kw_only=True):
    """curves.json: the shape of the evaluation after `step`, from `samples` of the `of` samples of a split.

    roc: rates of false (`fpr`) and true positives (`tpr`) at each threshold. pr: `recall` and `precision` at each.
    reliability: mean probability (`preds`), share of positives (`labels`) and number of `samples` of each bin. scores:
    number of samples of either label (`positive`, `negative`), [bins], in bins of predicted probabilities, whose
    `edges` are [bins + 1].
    """

    step: int = 0
    split: str = ""
    samples: int
    of: int
    auc_standard_error: Number | None = None
    roc: dict[str, list[Number]] | None
    pr: dict[str, list[Number]] | None
    reliability: list[dict[str, Number]]
    scores: dict[str, list[Number]]


class StepTimeHistogram(Struct):
    """step_times.json: counts of step times, [bins], between edges in ms, [bins + 1]; both empty without steps."""

    edges_ms: list[Number]
    counts: list[int]


class Event(OpenDocument, kw_only=True):
    """metrics.jsonl: a line says what happened after `step`: training, an evaluation, a checkpoint, a resumption.

    event: kind of the event. samples: trained so far. seconds: since the run began. Values of kinds without a type of
    their own, and of kinds that another version writes, are further keys.
    """

    event: str
    step: int
    samples: int | None = None
    seconds: Number | None = None


class TrainEvent(Event, kw_only=True):
    """A window of steps that ends with `step`.

    steps: their number. loss, logloss: means; None if all steps were skipped, or if not computed. accuracy: mean.
    lr: learning rate at `step`. gradient_norm: 2-norm of the dense parameters' gradients at `step`, before
    clipping; None if that step was skipped. input_wait_fraction: share of the window's time that rank 0 spent waiting
    for batches. phase_seconds: mean seconds of a step's parts, on the slowest process. watts: mean power of all devices
    together. host_bytes, device_bytes: memory that rank 0 uses.
    """

    epoch: int | None = None
    steps: int | None = None
    loss: Number | None = None
    accuracy: Number | None = None
    logloss: Number | None = None
    lr: Number | None = None
    gradient_norm: Number | None = None
    samples_per_second: Number | None = None
    input_wait_fraction: Number | None = None
    phase_seconds: Figures | None = None
    watts: Number | None = None
    host_bytes: int | None = None
    device_bytes: int | None = None


class EvaluationEvent(Event, kw_only=True):
    """An evaluation of a split (`eval`, or `eval_train` of the training split), its other metrics as further keys.

    eval_samples: rows evaluated. eval_seconds: time that it took.
    """

    eval_samples: int | None = None
    split: str | None = None
    auc: Number | None
    eval_seconds: Number | None = None

    def figures(self) -> EvaluationFigures:
        """Return the evaluation in the form of a summary."""
        return EvaluationFigures(
            step=self.step, split=self.split, samples=self.eval_samples, auc=self.auc, rest=self.rest
        )


def decode_event(line: bytes) -> Event:
    """Return the event of a line of metrics.jsonl.

    Raises ValueError: the line is no event; names the key.
    """
    document = decode(line, object)
    kind = document.get("event") if isinstance(document, dict) else None
    if kind == "train":
        return convert(document, TrainEvent)
    return convert(document, EvaluationEvent) if kind in ("eval", "eval_train") else convert(document, Event)


def monitored_value(evaluation: EvaluationFigures, monitor: Monitor) -> float | None:
    """Return the metric that train.monitor names, or its weighted sum of metrics; None if one of them is undefined."""
    if isinstance(monitor, str):
        return evaluation.figure(monitor)
    values = [(weight, evaluation.figure(name)) for name, weight in monitor.items()]
    if any(value is None for _, value in values):
        return None
    return float(sum(weight * (value or 0.0) for weight, value in values))


def score(value: float, monitor: Monitor) -> float:
    """Return the value of train.monitor, negated if smaller is better: the best evaluation has the highest score."""
    return -value if isinstance(monitor, str) and METRICS[monitor].larger_is_better is False else value
