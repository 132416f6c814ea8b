"""Every knob: its meaning and its unit. Values live in conf/; unknown keys and wrong types are refused."""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import MISSING, OmegaConf

from common.errors import UserError

CONFIG_DIR = Path(__file__).parent / "conf"


class Platform(Enum):
    """Where the computation runs; `auto` takes the GPUs that torch was built for, if it sees any."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    rocm = "rocm"


class Precision(Enum):
    """Arithmetic of the dense layers; tables and losses stay fp32."""

    fp32 = "fp32"
    tf32 = "tf32"
    bf16 = "bf16"


class Interaction(Enum):
    """dot: pairwise products of the features' vectors; cat: their concatenation (Naumov et al. 2019)."""

    dot = "dot"
    cat = "cat"


class OptimizerName(Enum):
    """The algorithm for tables (fused into FBGEMM's backward) and for dense parameters (torch.optim)."""

    sgd = "sgd"
    adagrad = "adagrad"
    rowwise_adagrad = "rowwise_adagrad"


class ScheduleName(Enum):
    """constant, or linear warm-up, hold and polynomial decay of power 2."""

    constant = "constant"
    warmup_poly = "warmup_poly"


class VerifyData(Enum):
    """When to compare shards with their sums: `auto` does if there are at most 4 GiB of them."""

    auto = "auto"
    always = "always"
    never = "never"


@dataclass
class SyntheticConfig:
    """The day made where no data is given; the planted truth is described in docs/data.md."""

    rows: int | None = None  # rows of the raw day; null: data_prep's default
    seed: int | None = None  # of its generator


@dataclass
class DataConfig:
    """Where the dataset is, or what to make it from, and how it is read."""

    path: str | None = None  # dataset directory; null with data.raw null: the synthetic day is made
    raw: Any = None  # raw files (a path, a glob or a list) to preprocess into data.path if it is not there yet
    default_path: str = "data/synthetic"  # data.path where neither is given
    encoding: str | None = None  # the next four are handed to data_prep; null: its default
    frequency_threshold: int | None = None
    max_ind_range: int | None = None
    workers: int | None = None
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)
    verify: VerifyData = VerifyData.auto
    shuffle: bool = True  # reorder the training split in every epoch
    shuffle_block_rows: int = 65_536  # rows read in one piece; blocks are permuted …
    shuffle_window_blocks: int = 4  # … and rows are permuted within so many blocks (all are in memory twice)


@dataclass
class ModelConfig:
    """Naumov et al. 2019. The last width of dense_arch is the tables' dimension."""

    interaction: Interaction = Interaction.dot
    interaction_itself: bool = False  # dot: a vector's product with itself too
    embedding_dim: int = MISSING  # D, of every table; a multiple of 4 (FBGEMM)
    dense_arch: list[int] = MISSING  # widths of its layers, the last being D
    over_arch: list[int] = MISSING  # widths of its layers, the last being 1


@dataclass
class OptimizerConfig:
    """One algorithm and one learning rate for tables and dense parameters."""

    name: OptimizerName = MISSING
    lr: float = MISSING  # at schedule factor 1
    eps: float | None = None  # Adagrad only: added to the root of the sum of squares


@dataclass
class ScheduleConfig:
    """Factor on the learning rate at each step; all values in steps."""

    name: ScheduleName = MISSING
    warmup_steps: int = 0
    decay_start_step: int = 0
    decay_steps: int = 0


@dataclass
class ShardingConfig:
    """How tables are spread over processes."""

    types: Any = "table_wise"  # of every table, alone or as a list of one: table_wise, row_wise or column_wise


@dataclass
class RuntimeConfig:
    """The machine's part."""

    platform: Platform = Platform.auto
    num_threads: int | None = None  # torch's threads a process; null: cores / processes here. Changes CPU bits
    precision: Precision | None = None  # null: fp32; for a run that is there, its own
    timeout_minutes: float = 30.0  # longest wait of a process for another


@dataclass
class RunConfig:
    """Where the run is recorded."""

    name: str = MISSING
    dir: str = "runs/${run.name}"


@dataclass
class TrainConfig:
    """How long, how much at once, and what is looked at on the way."""

    global_batch_size: int = MISSING  # samples a step over all processes
    epochs: int | None = None  # null: one, or as many as max_steps or max_samples take
    max_steps: int | None = None  # stop after so many steps; 0 builds the run and ends
    max_samples: int | None = None  # stop before the step that would exceed so many samples
    max_minutes: float | None = None  # stop resumably once this process has run so long
    seed: int = 0  # initial values and data order
    eval_every_steps: int | None = None  # null: only at the end
    target_auc: float | None = None  # stop once an evaluation reaches it
    log_every_steps: int = 50
    warmup_steps_excluded: int = 10  # first steps of this process left out of throughput figures
    deterministic: bool = False  # GPU: slower kernels with fixed summation order. On CPU always so


@dataclass
class EvalConfig:
    """Evaluation during and after training."""

    split: str = "val"
    global_batch_size: int = 16_384


@dataclass
class CheckpointConfig:
    """When state is saved, how much is kept, where a run starts from."""

    every_steps: int | None = None
    every_minutes: float | None = None
    keep: int = 2  # newest whole checkpoints that stay
    resume: str = "auto"  # auto: the run's newest whole one; never: start over; a path: of a checkpoint or a run


@dataclass
class AppConfig:
    """The whole configuration of `python -m app.train`."""

    run: RunConfig = field(default_factory=RunConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    sharding: ShardingConfig = field(default_factory=ShardingConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)


@dataclass
class EvaluateConfig:
    """The configuration of `python -m app.evaluate`."""

    run: str = MISSING  # the run's directory
    split: str = "test"
    checkpoint: str | None = None  # null: the run's newest
    data_path: str | None = None  # null: where the run found its dataset
    out: str | None = None  # also write the metrics to this JSON file
    global_batch_size: int = 16_384
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)  # threads, precision: those of the run unless given


@dataclass
class VerifyConfig:
    """The configuration of `python -m app.verify`."""

    run: str = MISSING  # the run's directory
    data_path: str | None = None  # null: where the run found its dataset
    tolerance: float = 1e-4  # on losses relative, on parameters absolute, where bits cannot be equal
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)  # threads, precision: those of the run unless given


SHARDING_TYPES = ("table_wise", "row_wise", "column_wise")


def to_plain(config: object) -> dict[str, Any]:
    """A configuration as dicts, lists, strings and numbers."""
    return OmegaConf.to_container(OmegaConf.structured(config), resolve=True, enum_to_str=True)  # type: ignore


def from_plain(content: dict[str, Any]) -> AppConfig:
    """The other way, for a configuration read from a run's directory.

    Raises:
        OmegaConfBaseException: unknown keys or wrong types.
    """
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(AppConfig), content))  # type: ignore


def sharding_type(config: ShardingConfig) -> str:
    """The one sharding type of all tables.

    Raises:
        UserError: not a known type.
    """
    types = [config.types] if isinstance(config.types, str) else config.types
    if not isinstance(types, list) or len(types) != 1 or types[0] not in SHARDING_TYPES:
        raise UserError(f"sharding.types={config.types}: must be one of {', '.join(SHARDING_TYPES)}")
    return str(types[0])
