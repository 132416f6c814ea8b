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

    rows: int = 200_000  # rows of the raw day
    seed: int = 1  # of its generator


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
    eps: float = 1e-10  # Adagrad: added to the root of the sum of squares


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
    precision: Precision = Precision.fp32
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
    epochs: int = 1
    max_steps: int | None = None  # stop after so many steps; 0 builds the run and ends
    max_samples: int | None = None  # stop before the step that would exceed so many samples
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
    resume: str = "auto"  # auto: the run's newest one; never: start over; a path: that checkpoint


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
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)


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


def validate(config: AppConfig) -> None:
    """Refuse values that cannot work, before anything is built.

    Raises:
        UserError: names the key, its value and what is allowed.
    """
    train, model, schedule = config.train, config.model, config.schedule
    at_least = {
        "train.global_batch_size": (train.global_batch_size, 1),
        "train.epochs": (train.epochs, 1),
        "train.max_steps": (train.max_steps, 0),
        "train.max_samples": (train.max_samples, 0),
        "train.seed": (train.seed, 0),
        "train.eval_every_steps": (train.eval_every_steps, 1),
        "train.log_every_steps": (train.log_every_steps, 1),
        "train.warmup_steps_excluded": (train.warmup_steps_excluded, 0),
        "eval.global_batch_size": (config.eval.global_batch_size, 1),
        "checkpoint.every_steps": (config.checkpoint.every_steps, 1),
        "checkpoint.keep": (config.checkpoint.keep, 1),
        "data.shuffle_block_rows": (config.data.shuffle_block_rows, 1),
        "data.shuffle_window_blocks": (config.data.shuffle_window_blocks, 1),
        "runtime.num_threads": (config.runtime.num_threads, 1),
        "schedule.warmup_steps": (schedule.warmup_steps, 0),
        "schedule.decay_start_step": (schedule.decay_start_step, 0),
        "schedule.decay_steps": (schedule.decay_steps, 0),
    }
    for key, (value, least) in at_least.items():
        if value is not None and value < least:
            raise UserError(f"{key}={value}: must be at least {least}")
    positive = {
        "optimizer.lr": config.optimizer.lr,
        "runtime.timeout_minutes": config.runtime.timeout_minutes,
        "checkpoint.every_minutes": config.checkpoint.every_minutes,
    }
    for key, number in positive.items():
        if number is not None and not number > 0:
            raise UserError(f"{key}={number}: must be above 0")
    if train.target_auc is not None and not 0 < train.target_auc <= 1:
        raise UserError(f"train.target_auc={train.target_auc}: must be in (0, 1]")
    if schedule.decay_steps and schedule.decay_start_step < schedule.warmup_steps:
        raise UserError(
            f"schedule.decay_start_step={schedule.decay_start_step}: the decay may not start before the warm-up ends "
            f"(schedule.warmup_steps={schedule.warmup_steps})"
        )
    _validate_model(model)
    sharding_type(config.sharding)
    if config.optimizer.name is OptimizerName.rowwise_adagrad and sharding_type(config.sharding) == "column_wise":
        raise UserError(
            "sharding.types=column_wise: row-wise Adagrad would average over each shard's columns, which is another "
            "algorithm; use table_wise or row_wise, or optimizer=adagrad"
        )


def sharding_type(config: ShardingConfig) -> str:
    """The one sharding type of all tables.

    Raises:
        UserError: not a known type.
    """
    types = [config.types] if isinstance(config.types, str) else config.types
    if not isinstance(types, list) or len(types) != 1 or types[0] not in SHARDING_TYPES:
        raise UserError(f"sharding.types={config.types}: must be one of {', '.join(SHARDING_TYPES)}")
    return str(types[0])


def _validate_model(model: ModelConfig) -> None:
    widths = {"model.dense_arch": model.dense_arch, "model.over_arch": model.over_arch}
    for key, layers in widths.items():
        if not layers or min(layers) < 1:
            raise UserError(f"{key}={layers}: must be a list of widths above 0, such as [512,256,16]")
    if model.embedding_dim < 4 or model.embedding_dim % 4:
        raise UserError(f"model.embedding_dim={model.embedding_dim}: must be a multiple of 4 (FBGEMM)")
    if model.dense_arch[-1] != model.embedding_dim:
        raise UserError(
            f"model.dense_arch={model.dense_arch}: its last width must be model.embedding_dim={model.embedding_dim}"
        )
    if model.over_arch[-1] != 1:
        raise UserError(f"model.over_arch={model.over_arch}: its last width must be 1 (the logit)")
    if model.interaction_itself and model.interaction is not Interaction.dot:
        raise UserError(
            f"model.interaction_itself=true: has no meaning with model.interaction={model.interaction.value}; "
            "use model.interaction=dot"
        )
