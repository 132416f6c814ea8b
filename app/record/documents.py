"""A run's manifest.json and summary.json. A key that does not apply to a run is UNSET, and its document lacks it.

The keys of each document are written in the order of its fields.
"""

from msgspec import UNSET, Struct, UnsetType

from app.metrics.documents import Best, EarlyStop, EvaluationFigures, Power, Throughput, rest
from app.sharding.documents import PlannedTable
from common.documents import Json, Number, OpenDocument

FORMAT_NAME = "clickwork-run"
SUMMARY_VERSION = 3
DONE = ("completed", "target_reached")  # statuses of a run that came to its end


class Code(OpenDocument, kw_only=True):
    """Commit of the checkout, SHA-256 of what differs from it, and SHA-256 of the modules."""

    git_sha: str | UnsetType | None = UNSET
    dirty_diff_sha256: str | UnsetType | None = UNSET
    sources_sha256: str | UnsetType | None = UNSET
    rest: Json = rest()


class Device(OpenDocument, kw_only=True):
    """One GPU."""

    name: str
    memory_bytes: int | UnsetType = UNSET
    architecture: str | UnsetType = UNSET
    rest: Json = rest()


class Hardware(OpenDocument, kw_only=True):
    """The machine of rank 0; `cores` are those of the affinity, quota and limit those of a container, if it has any."""

    machine: str | UnsetType = UNSET
    system: str | UnsetType = UNSET
    cpu: str | UnsetType = UNSET
    cpu_instructions: str | UnsetType = UNSET
    cores: int | UnsetType = UNSET
    cpu_quota: Number | UnsetType = UNSET
    memory_bytes: int | UnsetType = UNSET
    memory_limit_bytes: int | UnsetType = UNSET
    devices: list[Device] | UnsetType = UNSET
    driver: str | UnsetType | None = UNSET
    rest: Json = rest()


class Provenance(OpenDocument, kw_only=True):
    """What a machine and a checkout determine of a run, without secrets; `format` is of a run's manifest alone."""

    format: str | UnsetType = UNSET
    code: Code | UnsetType = UNSET
    image: str | UnsetType | None = UNSET
    base_image: str | UnsetType | None = UNSET
    versions: dict[str, str | None] | UnsetType = UNSET
    hardware: Hardware | UnsetType = UNSET
    environment: dict[str, str] | UnsetType = UNSET
    argv: list[str] | UnsetType = UNSET

    @property
    def commit(self) -> str | None:
        """The commit of the checkout, where it is known."""
        return (self.code.git_sha or None) if self.code else None


class Dataset(OpenDocument, kw_only=True):
    """The dataset of a run; path and digest are None of a run that was built from published table sizes."""

    path: str | None
    digest: str | None
    published_tables: str | UnsetType | None = UNSET
    rows: dict[str, int] | UnsetType = UNSET
    labels: dict[str, str | None] | UnsetType | None = UNSET
    label_rate: Number | UnsetType | None = UNSET
    encoding: str | UnsetType | None = UNSET
    sources: list[str | None] | UnsetType = UNSET
    source_md5: list[str] | UnsetType | None = UNSET
    bayes: Json | UnsetType | None = UNSET
    unseen: str | UnsetType | None = UNSET
    misleading: list[str] | UnsetType = UNSET
    sampling: str | UnsetType = UNSET
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
    """After which steps a launch reports, evaluates and ends, as it was configured.

    evaluation_distance: in steps; None: it evaluates at its end alone. first_evaluation: there is none before this
    step, but the last. evaluates_train: whether it evaluates the training split, too.
    """

    total_steps: int
    log_every_steps: int
    first_evaluation: int
    evaluation_distance: Number | None
    evaluates_train: bool


class RunManifest(Provenance, kw_only=True):
    """What made a run: its newest launch, and the `earlier` ones, whose manifests have no such list.

    began: when the launch began, UTC, as ISO 8601 writes it.
    """

    dataset: Dataset
    files: dict[str, str] | UnsetType = UNSET
    seeds: dict[str, int] | UnsetType = UNSET
    world_size: int
    platform: str | UnsetType = UNSET
    num_threads: int | UnsetType | None = UNSET
    compile: str | UnsetType = UNSET
    local_world_size: int | UnsetType = UNSET
    plan: dict[str, PlannedTable] | UnsetType = UNSET
    began: str | UnsetType = UNSET
    pipeline: str | UnsetType = UNSET
    tables: dict[str, TableSize] | UnsetType = UNSET
    schedule: RunSchedule | UnsetType = UNSET
    rest: Json = rest()
    from_step: int | UnsetType = UNSET
    results_before: int | UnsetType = UNSET
    earlier: "list[RunManifest] | UnsetType" = UNSET

    @property
    def launches(self) -> "list[RunManifest]":
        """The manifests of all launches, the newest last."""
        return [*(self.earlier or []), self]


class Parameters(OpenDocument, kw_only=True):
    """Numbers of parameters of the whole model."""

    embedding: int
    dense: int
    total: int
    rest: Json = rest()


class TrainFigures(OpenDocument, kw_only=True):
    """Means over the last steps; None where not computed. skipped_steps: of the whole run."""

    loss: Number | UnsetType | None = UNSET
    logloss: Number | UnsetType | None = UNSET
    skipped_steps: int | UnsetType = UNSET
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
    """The steps, seconds or launches that a group of figures is of."""

    steps: int | UnsetType = UNSET
    seconds: Number | UnsetType = UNSET
    launches: str | UnsetType = UNSET


class TableFigures(Struct, kw_only=True):
    """A table after training, of `rows` of its rows: all, or of a large one a sample; norms are 2-norms of rows.

    rows_touched: rows whose values differ from their initial ones; None where others than looked-up rows change, or the
    run starts from another's checkpoint.
    """

    rows: int
    rows_touched: int | None
    mean_norm: Number
    largest_norm: Number


class Summary(OpenDocument, kw_only=True):
    """A run's final figures; what was not measured is None or not set.

    eval: the evaluation of the model that is served, which is of the best checkpoint where the run keeps one; last: the
    newest evaluation. events: of each kind in metrics.jsonl.
    baselines: what the extension of this name has computed; no_baselines: why there are none, if they were wanted.
    """

    status: str
    error: str | UnsetType = UNSET
    version: int
    steps: int
    samples: int
    world_size: int
    parameters: Parameters
    train: TrainFigures
    best: Best | None
    early_stop: EarlyStop | UnsetType = UNSET
    eval: EvaluationFigures
    last: EvaluationFigures
    baselines: Json | UnsetType | None = UNSET
    no_baselines: str | UnsetType = UNSET
    throughput: Throughput
    covers: dict[str, Covered]
    events: dict[str, int] | UnsetType = UNSET
    memory: Memory | UnsetType | None = UNSET
    utilisation: dict[str, Number | None] | UnsetType | None = UNSET
    phase_seconds: dict[str, Number | None] | UnsetType | None = UNSET
    rest: Json = rest()
    power: Power | UnsetType | None = UNSET
    tables: dict[str, TableFigures] | UnsetType = UNSET
    seconds: dict[str, Number] | UnsetType = UNSET
    digest: Digests | UnsetType = UNSET
