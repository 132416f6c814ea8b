"""A run's manifest.json and summary.json. A value that does not apply to a run, or was not measured, is None.

The keys of each document are written in the order of its fields.
"""

from msgspec import UNSET, Struct, UnsetType, field

from app.metrics.documents import Best, EarlyStop, EvaluationFigures, Power, Throughput, rest
from app.sharding.documents import PlannedTable
from common.documents import Json, Number, OpenDocument

FORMAT_NAME = "clickwork-run"
SUMMARY_VERSION = 3
DONE = ("completed", "target_reached")  # statuses of a run that reached its end


class Code(OpenDocument, kw_only=True):
    """Commit of the checkout, SHA-256 of the differences from it, and SHA-256 of the modules."""

    git_sha: str | None
    dirty_diff_sha256: str | None
    sources_sha256: str | None
    rest: Json = rest()


class Device(OpenDocument, kw_only=True):
    """One GPU."""

    name: str
    memory_bytes: int
    architecture: str
    rest: Json = rest()


class Hardware(OpenDocument, kw_only=True):
    """The machine of rank 0; `cores` is the affinity's number, quota and limit are a container's, if there is one."""

    machine: str
    system: str
    cpu: str
    cpu_instructions: str
    cores: int
    cpu_quota: Number | None
    memory_bytes: int
    memory_limit_bytes: int | None
    devices: list[Device]
    driver: str | None
    rest: Json = rest()


class Provenance(OpenDocument, kw_only=True):
    """Facts about a run by its machine and checkout, without secrets; only a run's manifest has `format`."""

    format: str | UnsetType = UNSET
    code: Code
    image: str | None
    base_image: str | None
    versions: dict[str, str | None]
    hardware: Hardware
    environment: dict[str, str]
    argv: list[str]

    def device(self, platform: str) -> str:
        """Return the name of rank 0's processor on platform cpu, else of its GPU."""
        devices = [] if platform == "cpu" else self.hardware.devices
        return devices[0].name if devices else self.hardware.cpu

    @property
    def commit(self) -> str | None:
        """Commit of the checkout, if it is known."""
        return self.code.git_sha or None


class Dataset(OpenDocument, kw_only=True):
    """The dataset of a run; path and digest are None for a run that was built from published table sizes."""

    path: str | None
    digest: str | None
    published_tables: str | None = None
    rows: dict[str, int] = field(default_factory=dict)
    labels: dict[str, str | None] = field(default_factory=dict)
    label_rate: Number | None = None
    encoding: str | None = None
    sources: list[str | None] = field(default_factory=list)
    source_md5: list[str] | None = None
    bayes: Json | None = None
    unseen: str | None = None
    misleading: list[str] = field(default_factory=list)
    sampling: str | None = None
    rest: Json = rest()


class TableSize(OpenDocument, kw_only=True):
    """Size of a whole table, its weights in bytes, and the ids looked up in it."""

    features: int
    by_id: bool
    ids_per_sample: Number
    num_embeddings: int
    embedding_dim: int
    bytes: int
    rest: Json = rest()


class RunSchedule(Struct, kw_only=True):
    """Steps after which a launch reports, evaluates and ends, as configured.

    evaluation_distance: in steps; None: evaluate only at the end. first_evaluation: no evaluation comes before this
    step, except at the end. evaluates_train: whether the training split is evaluated, too.
    """

    total_steps: int
    log_every_steps: int
    first_evaluation: int
    evaluation_distance: Number | None
    evaluates_train: bool


class RunManifest(Provenance, kw_only=True):
    """Provenance of a run: its newest launch, and the `earlier` ones, whose own lists are empty.

    began: when the launch began, in UTC and ISO 8601. pipeline, schedule: None for a run that was built and not
        trained.
    """

    dataset: Dataset
    files: dict[str, str]
    seeds: dict[str, int]
    world_size: int
    platform: str
    num_threads: int | None
    compile: str
    local_world_size: int
    plan: dict[str, PlannedTable]
    began: str
    pipeline: str | None
    tables: dict[str, TableSize]
    schedule: RunSchedule | None
    rest: Json = rest()
    from_step: int
    results_before: int
    earlier: "list[RunManifest]" = field(default_factory=list)

    @property
    def launches(self) -> "list[RunManifest]":
        """Manifests of all launches, the newest last."""
        return [*self.earlier, self]


class Parameters(OpenDocument, kw_only=True):
    """Numbers of parameters of the whole model."""

    embedding: int
    dense: int
    total: int
    rest: Json = rest()


class TrainFigures(OpenDocument, kw_only=True):
    """Means over the last steps; None if not computed. skipped_steps: of the whole run."""

    loss: Number | None
    logloss: Number | None
    skipped_steps: int
    rest: Json = rest()


class Memory(OpenDocument, kw_only=True):
    """Peak bytes of a process."""

    host_peak_bytes: int | None = None
    device_peak_bytes: int | None = None
    rest: Json = rest()


class Digests(OpenDocument, kw_only=True):
    """SHA-256 over the bytes of all parameters, and of the losses of all steps."""

    parameters: str | None = None
    losses: str | None = None
    rest: Json = rest()


class Covered(Struct, kw_only=True):
    """The steps, seconds or launches that a group of figures covers."""

    steps: int | UnsetType = UNSET
    seconds: Number | UnsetType = UNSET
    launches: str | UnsetType = UNSET


class TableFigures(Struct, kw_only=True):
    """A table after training: figures over `rows` of its rows (a sample of a large table); norms are rows' 2-norms.

    rows_touched: rows that differ from their initial values; None if rows change without being looked up, or if the run
    started from another run's checkpoint.
    """

    rows: int
    rows_touched: int | None
    mean_norm: Number
    largest_norm: Number


class Summary(OpenDocument, kw_only=True):
    """A run's final figures; figures that were not measured are None.

    eval: evaluation of the served model, which is the best checkpoint's if the run keeps one; last: the newest
        evaluation.
    events: number of each kind in metrics.jsonl. baselines: figures that the extension of this name has computed;
    no_baselines: why there are none, if they were wanted.
    """

    status: str
    error: str | None = None
    version: int
    steps: int
    samples: int
    world_size: int
    parameters: Parameters
    train: TrainFigures
    best: Best | None
    early_stop: EarlyStop | None
    eval: EvaluationFigures
    last: EvaluationFigures
    baselines: Json | None = None
    no_baselines: str | None = None
    throughput: Throughput
    covers: dict[str, Covered]
    events: dict[str, int] = field(default_factory=dict)
    memory: Memory | None = None
    phase_seconds: dict[str, Number | None] | None = None
    rest: Json = rest()
    power: Power | None = None
    tables: dict[str, TableFigures] = field(default_factory=dict)
    seconds: dict[str, Number] = field(default_factory=dict)
    digest: Digests | None = None
