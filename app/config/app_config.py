"""The whole configuration of a run: its groups, their joint validation, and its plain form."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from app.config.data import DataConfig, DataScale, implied_data, require_eval_split, require_source, validate_data
from app.config.kinds import GROUPS, OptimizerName
from app.config.model import ModelConfig, PublishedConfig, require_dlrm, require_own_scores, validate_model
from app.config.sharding import ShardingConfig, TopologyConfig, validate_sharding
from app.config.train import (
    LAYOUT,
    CheckpointConfig,
    Compile,
    EnvironmentConfig,
    EvalConfig,
    LossConfig,
    OptimizerConfig,
    Precision,
    RecordConfig,
    RunConfig,
    RuntimeConfig,
    ScheduleConfig,
    TrainConfig,
    validate_checkpoint,
    validate_environment,
    validate_loss,
    validate_monitor,
    validate_new_name,
    validate_optimizer,
    validate_runtime,
    validate_schedule,
    validate_threads,
    validate_train,
)
from common.compose import convert
from common.errors import UserError
from common.extensions import absence, add_key_groups, key_groups
from common.keys import check_keys, key, shown
from common.machine import require_memory
from data_prep.dataset.format import Manifest, load_manifest
from data_prep.dataset.options import LabelKind

RECIPE = "own_table"
STEPS_PER_EPOCH = 100  # at least, if the rows suffice for batches of LEAST_BATCH
LEAST_BATCH, LARGEST_BATCH = 32, 4096
DECAY, LARGEST_DECAY = 1600.0, 0.1  # optimizer.sparse_weight_decay times train's rows, and its maximum
LINEAR = 20.0  # model.linear of all columns together
MODEL = {"model.interaction": "dcn", "model.numeric": "vectors", "model.dense_arch": []}  # its other keys need these
FEW_NUMBERS = 3  # up to this number of dense columns, a small layer learns a function of each
MANY_PER_LABEL = 4  # values for each row of the rarer label
MANY_VALUES = 2_000_000  # from here on, moving all rows of all tables at every step would take most of the time


def table_values(manifest: Manifest) -> dict[str, Any]:
    """Return the values of the keys that depend on the table, by dotted key.

    The batch is a power of 2 that leaves STEPS_PER_EPOCH. Numbers need two hidden layers, as one learns few functions
    of them; a small layer does for FEW_NUMBERS, and where values are many beside the rows of the rarer label. L2 falls
    with the rows, as that of a prior does. Where numbers are more than categories, their functions are the model, and
    less restrained. Columns share LINEAR, so that a logit moves as far a step however many there are. Tables of
    MANY_VALUES are updated where a batch has their rows, without L2.
    """
    train = manifest.splits["train"]
    batch = 2 ** int(math.log2(max(1, min(max(LEAST_BATCH, train.rows / STEPS_PER_EPOCH), train.rows, LARGEST_BATCH))))
    num_values = sum(manifest.num_embeddings.values())
    rate = (train.label_rate or 0.0) if manifest.label_kind is LabelKind.click else 0.0
    rarer = train.rows * min(rate, 1 - rate)
    num_dense, num_sparse = len(manifest.schema["dense"]), len(manifest.num_embeddings)
    deep, dropout = ([128, 128], 0.5) if num_dense else ([64], 0.3)
    decay = min(LARGEST_DECAY, DECAY / max(1, train.rows))
    if num_dense > num_sparse:
        dropout, decay = 0.2, 0.01
    if 0 < num_dense <= FEW_NUMBERS or 0 < MANY_PER_LABEL * rarer <= num_values:
        deep, dropout = [16], 0.5
    values: dict[str, Any] = {
        "train.global_batch_size": batch,
        "model.deep_arch": deep,
        "model.dropout": [dropout],
        "model.linear": LINEAR / max(1, num_sparse),
        "optimizer.sparse_weight_decay": decay,
    }
    # With rows of one label only, the log-odds would not be finite.
    if rarer:
        values["model.initial_logit"] = math.log(rate / (1 - rate))
    if num_values >= MANY_VALUES:
        values |= {"optimizer.name": OptimizerName.adagrad.value, "optimizer.dense": OptimizerName.adam.value}
        values |= {"optimizer.sparse_lr": 0.01, "optimizer.sparse_weight_decay": 0.0}
    return values


def implied_recipe(composed: Any, given: Sequence[str]) -> dict[str, Any]:
    """Return recipe=own_table for a dataset of a user's own table, or its files, if no recipe is given."""
    # The default recipe is quickstart, so any other one has been asked for.
    if "recipe" in given or "published.recipe" in given or composed.published.recipe != "quickstart":
        return {}
    return {"recipe": RECIPE} if _reads_own_table(composed) else {}


def implied_keys(composed: Any, given: Sequence[str]) -> dict[str, Any]:
    """Return the values that given keys imply: by_table lacks those keys, and steps replace epochs."""
    values: dict[str, Any] = {}
    if not composed.by_table:
        return values
    for name in [] if "model" in given else [name for name in MODEL if name in given]:
        value = getattr(composed.model, name.partition(".")[2])
        if shown(value) != shown(MODEL[name]):
            text = f"{name}={shown(value)}".replace(" ", "")
            raise UserError(
                f"{text}: not with the model of recipe=own_table; give another model too: model=dlrm {text}"
            )
    # The recipe gives the share of an epoch, and both keys together are refused.
    if "train.eval_every_steps" in given:
        values["train.eval_every_fraction"] = None
    not_given = [name for name in composed.by_table if not {name, name.partition(".")[0]} & {*given, *values}]
    return values if not_given == list(composed.by_table) else {**values, "by_table": not_given}


def _reads_own_table(composed: Any) -> bool:
    """Return whether a composed configuration trains DLRM on a user's own table, prepared or to be prepared."""
    data, root = composed.data, composed.data.path
    if composed.model.name != "dlrm" or root is None:
        return False
    if any(getattr(data, name) is not None for name in ("raw", "train")):
        return data.schema is not None
    try:
        manifest = load_manifest(Path(root))
    except UserError:  # a run says so later
        return False
    return is_own_table(manifest)


def is_own_table(manifest: Manifest) -> bool:
    """Return whether a dataset was made from a user's own table, by a schema."""
    return manifest.kind.name == "rows" and manifest.encoding.get("table") is not None


CONFIG_DIR = Path(__file__).parents[1] / "conf"


def tiny_values(composed: Any, _given: Sequence[str]) -> dict[str, Any]:
    """Return the recipe's tiny values, if data.scale=tiny: common.compose lets the user's own override them."""
    if composed.data.scale is not DataScale.tiny:
        return {}
    if not composed.tiny:
        raise UserError("data.scale=tiny: this recipe has no tiny form (key `tiny`)")
    return {"run.name": f"{composed.run.name}_tiny", "data.published_tables": None, **composed.tiny}


@add_key_groups
@dataclass(frozen=True)
class AppConfig:
    """The whole configuration of `python -m app.train`."""

    run: RunConfig = field(default_factory=RunConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    sharding: ShardingConfig = field(default_factory=ShardingConfig)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    published: PublishedConfig = field(default_factory=PublishedConfig)
    record: RecordConfig = field(default_factory=RecordConfig)
    baselines: bool | None = key(
        None,
        "compute baselines after training: null: on 200,000 rows, in 30 s, where possible; true: on all rows",
        is_common=True,
        decides_bits=False,
    )
    tiny: dict[str, Any] = key({}, "what data.scale=tiny changes, by dotted key", decides_bits=False)

    by_table: list[str] = key(
        [],
        "keys that recipe=own_table sets by the dataset's rows and values (docs/recipes.md); [] in a recorded run",
        decides_bits=False,
    )

    implied: ClassVar[tuple[Any, ...]] = (implied_recipe, implied_keys, tiny_values, implied_data)


def from_plain(content: dict[str, Any]) -> AppConfig:
    """Return the configuration that was read from a run's directory.

    Raises:
        ConversionError: unknown keys or wrong types.
    """
    return convert(AppConfig, content)


def validate_new_run(config: AppConfig) -> None:
    """Validate the configuration of a new run. Also reject settings that only existing runs may have."""
    require_memory("training")
    validate(config)
    if config.baselines and (reason := absence("baselines")) is not None:
        raise UserError(f"baselines=true: {reason}; restore it (`git checkout extensions`), or leave baselines out")
    validate_new_name(config.run.name)
    # A recorded run may come from a larger machine, so this holds for new runs only.
    validate_threads(config.runtime)


def validate(config: AppConfig) -> None:
    """Refuse values that cannot work, before anything is built."""
    # Limits of single keys come first, so that the later checks can rely on them.
    check_keys(config)
    validate_train(config.train)
    validate_checkpoint(config.checkpoint)
    validate_data(config.data)
    validate_runtime(config.runtime)
    validate_optimizer(config.optimizer)
    validate_schedule(config.schedule)
    validate_model(config.model)
    if config.published.md5 and config.published.test_auc is None:  # published for several models, not for this one
        raise UserError(
            f"recipe={config.published.recipe}: is published with model=dlrm, dcnv2, crossnetv2, dnn or lr; give one "
            "of them"
        )
    if config.runtime.compile in (Compile.dense, Compile.step):
        require_dlrm(config.model, f"runtime.compile={config.runtime.compile.value}")
    cuts_rate = config.schedule.name.schedule.by_metric
    has_threshold = cuts_rate or config.train.early_stop_patience is not None
    if config.schedule.threshold != ScheduleConfig().threshold and not has_threshold:
        raise UserError(
            f"schedule.threshold={config.schedule.threshold}: has no effect without schedule=plateau or "
            "train.early_stop_patience; leave it out"
        )
    if config.data.negatives.per_positive is not None:
        require_dlrm(config.model, f"data.negatives.per_positive={config.data.negatives.per_positive}")
    if config.eval.group_by is not None:
        require_dlrm(config.model, f"eval.group_by={config.eval.group_by}")
    over = config.model.kind.over if config.eval.group_by is None else GROUPS
    validate_monitor(config.train, config.checkpoint, cuts_rate, over)
    require_source(config.data, config.model.kind)
    require_eval_split(config.data, config.eval.split)
    _validate_last_batch(config.model, config.train, config.runtime)
    _validate_batch_norm(config.model, config.train)
    _validate_layout(config.model, config.train, config.runtime, config.sharding)
    validate_loss(config.loss)
    validate_sharding(config.sharding, config.optimizer.name)
    validate_environment(config.environment)
    for group in key_groups(type(config)):
        group.validate(config)


def _validate_batch_norm(model: ModelConfig, train: TrainConfig) -> None:
    """Raise UserError for batches that are too small for batch norm to have a variance."""
    if model.batch_norm and train.global_batch_size == 1:
        raise UserError(
            "train.global_batch_size=1: model.batch_norm=true needs at least two rows in a batch; use larger batches, "
            "or model.batch_norm=false"
        )
    if model.batch_norm and train.micro_batch is not None and train.global_batch_size % train.micro_batch == 1:
        raise UserError(
            f"train.global_batch_size={train.global_batch_size}: leaves a micro-batch of one row, and "
            f"model.batch_norm=true needs at least two; give a multiple of {train.micro_batch}"
        )


def _validate_layout(model: ModelConfig, train: TrainConfig, runtime: RuntimeConfig, sharding: ShardingConfig) -> None:
    """Raise UserError for settings whose bits always depend on the layout, and for keys without effect."""
    setting = f"train.deterministic={LAYOUT}"
    if train.deterministic not in (False, True, LAYOUT):
        raise UserError(f"train.deterministic={shown(train.deterministic)}: must be true, false or {LAYOUT}")
    if train.micro_batch is None:
        if train.micro_batch_size is not None:
            raise UserError(
                f"train.micro_batch_size={train.micro_batch_size}: has no effect without {setting}; leave it out"
            )
        return
    require_dlrm(model, setting)
    require_own_scores(model, setting)
    precision, compiled, exchange = runtime.precision, runtime.compile, sharding.qcomm
    refused = {
        f"runtime.precision={shown(precision)}": (
            precision not in (None, Precision.fp32),
            "only sums of fp32 have a fixed order; give runtime.precision=fp32",
        ),
        f"runtime.compile={shown(compiled)}": (
            compiled in (Compile.dense, Compile.step),
            "a compiler chooses the order of sums; give runtime.compile=none",
        ),
        "sharding.qcomm": (
            exchange != type(exchange)(),
            "rounds what processes exchange, and nothing travels in one process; leave it out",
        ),
    }
    for given, (is_given, reason) in refused.items():
        if is_given:
            raise UserError(f"{given}: not with {setting}: {reason}, or {setting.replace(LAYOUT, 'true')}")


def _validate_last_batch(model: ModelConfig, train: TrainConfig, runtime: RuntimeConfig) -> None:
    """Raise UserError if train.drop_last=false cannot work."""
    if train.drop_last:
        return
    require_dlrm(model, "train.drop_last=false")
    require_own_scores(model, "train.drop_last=false")
    if runtime.compile is Compile.step:
        raise UserError(
            "train.drop_last=false: not with runtime.compile=step, whose graphs are of whole batches; give "
            "runtime.compile=none"
        )
