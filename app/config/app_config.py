"""The whole configuration of a run: its groups, their joint validation, and its plain form."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from app.config.data import (
    DataConfig,
    DataScale,
    implied_data,
    require_eval_split,
    require_source,
    validate_data,
)
from app.config.model import ModelConfig, require_dlrm, require_own_scores, validate_model
from app.config.optimizer import (
    OptimizerConfig,
    ScheduleConfig,
    validate_optimizer,
    validate_schedule,
)
from app.config.own_table import implied_keys, implied_recipe
from app.config.published import PublishedConfig
from app.config.record import RecordConfig
from app.config.runtime import (
    Compile,
    EnvironmentConfig,
    Precision,
    RuntimeConfig,
    validate_environment,
    validate_runtime,
    validate_threads,
)
from app.config.sharding import (
    ShardingConfig,
    TopologyConfig,
    validate_sharding,
)
from app.config.train import (
    LAYOUT,
    CheckpointConfig,
    EvalConfig,
    LossConfig,
    RunConfig,
    TrainConfig,
    validate_checkpoint,
    validate_loss,
    validate_monitor,
    validate_new_name,
    validate_train,
)
from app.kinds.metrics import GROUPS
from common.compose import convert
from common.errors import UserError
from common.extensions import absence, key_groups, with_key_groups
from common.keys import check_keys, key, shown
from common.limits import require_memory

CONFIG_DIR = Path(__file__).parents[1] / "conf"


def tiny_values(composed: Any, _given: Sequence[str]) -> dict[str, Any]:
    """Return the recipe's tiny values, if data.scale=tiny: common.compose lets the user's own override them."""
    if composed.data.scale is not DataScale.tiny:
        return {}
    if not composed.tiny:
        raise UserError("data.scale=tiny: this recipe has no tiny form (key `tiny`)")
    return {"run.name": f"{composed.run.name}_tiny", "data.published_tables": None, **composed.tiny}


@with_key_groups
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
    validate_threads(config.runtime)


def validate(config: AppConfig) -> None:
    """Refuse values that cannot work, before anything is built."""
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
    if config.runtime.compile not in (None, Compile.none):
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
            compiled not in (None, Compile.none),
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
