"""The whole configuration of a run: its groups, their joint validation, and its plain form."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from app.config.data import DataConfig, implied_data
from app.config.kinds import AUC, GROUPS, METRICS, RANKED, OptimizerName, model_for
from app.config.model import ModelConfig, PublishedConfig, require_dlrm, require_own_scores
from app.config.sharding import QCommConfig, ShardingConfig, TopologyConfig, sharding_faults
from app.config.train import (
    LAYOUT,
    CheckpointConfig,
    EnvironmentConfig,
    EvalConfig,
    LossConfig,
    OptimizerConfig,
    RecordConfig,
    RunConfig,
    RuntimeConfig,
    ScheduleConfig,
    TrainConfig,
    keys_by_evaluations,
    validate_new_name,
)
from common.errors import UserError
from common.extensions import absence, add_key_groups, key_groups
from common.keys import check, key, shown
from common.machine import require_memory, usable_cpus
from data_prep.dataset.format import SPLITS, Manifest, load_manifest
from data_prep.dataset.options import LabelKind

STEPS_PER_EPOCH = 100  # at least, if the rows suffice for batches of LEAST_BATCH
LEAST_BATCH, LARGEST_BATCH = 32, 4096
DECAY, LARGEST_DECAY = 1600.0, 0.1  # optimizer.sparse_weight_decay times train's rows, and its maximum
LINEAR = 20.0  # model.linear of all columns together
MODEL = {"model.interaction": "dcn", "model.numeric": "vectors", "model.dense_arch": []}  # its other keys need these
FEW_NUMBERS = 3  # up to this number of dense columns, a small layer learns a function of each
MANY_PER_LABEL = 4  # values for each row of the rarer label; or, of two ids, rows of it for each value
MANY_VALUES = 2_000_000  # from here on, moving all rows of all tables at every step would take most of the time


def table_values(manifest: Manifest) -> dict[str, Any]:
    """Return the values of the keys that depend on the table, by dotted key.

    The batch is a power of 2 that leaves STEPS_PER_EPOCH. Numbers need two hidden layers, as one learns few functions
    of them; a small layer does for FEW_NUMBERS, and where values are many beside the rows of the rarer label. For two
    ids of few rows a value their product is the model, and a larger layer learns chance. L2 falls with the rows, as
    that of a prior does. Where numbers are more than categories, their functions are the model, and less restrained.
    Columns share LINEAR, so that a logit moves as far a step however many there are. Tables of MANY_VALUES are updated
    where a batch has their rows, without L2.
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
    elif not num_dense and num_sparse == 2 and 0 < rarer < MANY_PER_LABEL * num_values:
        deep, dropout = [4], 0.5
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
    """Return recipe=own_table for DLRM on a user's own table, prepared or to be prepared, if no recipe is given."""
    data, recipe = composed.data, {"recipe": "own_table"}
    # The default recipe is quickstart, so any other one has been asked for.
    if "recipe" in given or "published.recipe" in given or composed.published.recipe != "quickstart":
        return {}
    if composed.model.name != "dlrm" or data.path is None:
        return {}
    if data.raw is not None or data.train is not None:
        return recipe if data.schema is not None else {}
    try:
        return recipe if is_own_table(load_manifest(Path(data.path))) else {}
    except UserError:  # a run says so later
        return {}


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


def is_own_table(manifest: Manifest) -> bool:
    """Return whether a dataset was made from a user's own table, by a schema."""
    return manifest.kind.name == "rows" and manifest.encoding.get("table") is not None


THREADS_PER_CORE = 4  # a few more threads than cores only slow a run down; many stop the machine
CONFIG_DIR = Path(__file__).parents[1] / "conf"


def tiny_values(composed: Any, _given: Sequence[str]) -> dict[str, Any]:
    """Return the recipe's tiny values, if data.scale=tiny: common.compose lets the user's own override them."""
    if composed.data.scale != "tiny":
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

    def faults(self) -> Iterator[str]:
        """Yield messages of keys that cannot work beside those of other groups."""
        compiled = self.runtime.compile
        dlrm_alone = {
            f"runtime.compile={shown(compiled)}": compiled in ("dense", "step"),
            f"data.negatives.per_positive={self.data.negatives.per_positive}": self.data.negatives.per_positive,
            f"eval.group_by={self.eval.group_by}": self.eval.group_by,
            "train.drop_last=false": not self.train.drop_last,
            f"train.deterministic={LAYOUT}": self.train.micro_batch,
        }
        for setting in (setting for setting, is_given in dlrm_alone.items() if is_given):
            require_dlrm(self.model, setting)
        if self.published.md5 and self.published.test_auc is None:  # published for several models, not for this one
            yield (
                f"recipe={self.published.recipe}: is published with model=dlrm, dcnv2, crossnetv2, dnn or lr; give one "
                "of them"
            )
        makes, model = self.data.source_kind.makes, self.model.kind
        if makes is not None and makes is not model.learns_from:
            yield (
                f"data.source={shown(self.data.source)}: makes {makes.name}, and {model.label} learns from "
                f"{model.learns_from.name}; give {model.instead_of_source or model_for(makes)}"
            )
        # With files for splits, the one to evaluate has a file, or is held out of data.train.
        split, files = self.eval.split, {name: getattr(self.data, name) for name in SPLITS}
        holds_out = any(value is not None for value in vars(self.data.split).values())
        if files["train"] is not None and files.get(split, split) is None and not holds_out:
            usable = next(name for name in ("test", "val", "train") if files[name] is not None)
            held_out = "or data.split.held_out=0.1 to hold it out of train, " if usable != "train" else ""
            yield f"eval.split={split}: data.{split} is not given; give it, {held_out}or eval.split={usable}"
        yield from self._monitor_faults()
        yield from self._batch_faults()
        yield from sharding_faults(self.sharding, self.optimizer.name)

    def _monitor_faults(self) -> Iterator[str]:
        """Yield messages of a train.monitor that evaluations lack, and of settings by which it decides nothing."""
        monitor, cuts_rate = self.train.monitor, self.schedule.name.schedule.by_metric
        over = self.model.kind.over if self.eval.group_by is None else GROUPS  # the unit that metrics can be over
        setting = f"train.monitor={shown(monitor)}"
        weights = {monitor: 1.0} if isinstance(monitor, str) else monitor
        # A value of another form counts as a metric without a name, which the first check refuses.
        for name, weight in weights.items() if isinstance(weights, dict) and weights else [("", 0.0)]:
            is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
            if name not in RANKED or not is_number or not math.isfinite(weight) or not weight:
                yield (
                    f"{setting}: must be one of {', '.join(RANKED)}, or weights of some, such as {{auc:1,logloss:-1}}"
                )
            units = METRICS[name].over
            if GROUPS in units and over not in units:
                yield (
                    f"{setting}: {name} is over groups of rows; "
                    f"{'use gauc' if over else 'give eval.group_by=COLUMN, or use auc'}"
                )
            elif units and over not in units:
                yield f"{setting}: {name} is over users, which only logs of events have; use auc"
        deciding = keys_by_evaluations(self.train, cuts_rate)
        if deciding and self.train.eval_every_steps is None and self.train.eval_every_fraction is None:
            yield (
                f"{deciding[0]}: has no effect without evaluations while training; add train.eval_every_fraction=1 for "
                "one an epoch, or train.eval_every_steps"
            )
        if monitor != AUC and not deciding and not self.checkpoint.keep_best:
            yield (
                f"{setting}: has no effect with checkpoint.keep_best=false; leave it out, or use "
                "train.early_stop_patience or schedule=plateau"
            )
        if self.schedule.threshold != ScheduleConfig().threshold and not deciding:
            yield (
                f"schedule.threshold={self.schedule.threshold}: has no effect without schedule=plateau or "
                "train.early_stop_patience; leave it out"
            )

    def _batch_faults(self) -> Iterator[str]:
        """Yield messages of settings that do not fit the batches, an epoch's last one, or micro-batches."""
        batch, micro_batch = self.train.global_batch_size, self.train.micro_batch
        layout = f"train.deterministic={LAYOUT}"
        if not self.train.drop_last:
            require_own_scores(self.model, "train.drop_last=false")
            if self.runtime.compile == "step":
                yield (
                    "train.drop_last=false: not with runtime.compile=step, whose graphs are of whole batches; give "
                    "runtime.compile=none"
                )
        if self.model.batch_norm and batch == 1:
            yield (
                "train.global_batch_size=1: model.batch_norm=true needs at least two rows in a batch; use larger "
                "batches, or model.batch_norm=false"
            )
        if micro_batch is None:
            return
        require_own_scores(self.model, layout)
        if self.model.batch_norm and batch % micro_batch == 1:
            yield (
                f"train.global_batch_size={batch}: leaves a micro-batch of one row, and model.batch_norm=true needs at "
                f"least two; give a multiple of {micro_batch}"
            )
        # These settings round or order sums by the layout of processes.
        or_else = f"or {layout.replace(LAYOUT, 'true')}"
        if self.runtime.precision not in (None, "fp32"):
            precision = self.runtime.precision
            yield (
                f"runtime.precision={precision}: not with {layout}: only sums of fp32 have a fixed order; give "
                f"runtime.precision=fp32, {or_else}"
            )
        if self.runtime.compile in ("dense", "step"):
            yield (
                f"runtime.compile={self.runtime.compile}: not with {layout}: a compiler chooses the order of "
                f"sums; give runtime.compile=none, {or_else}"
            )
        if self.sharding.qcomm != QCommConfig():
            yield (
                f"sharding.qcomm: not with {layout}: rounds what processes exchange, and nothing travels in one "
                f"process; leave it out, {or_else}"
            )


def validate_new_run(config: AppConfig) -> None:
    """Validate the configuration of a new run. Also reject settings that only existing runs may have."""
    require_memory("training")
    validate(config)
    if config.baselines and (reason := absence("baselines")) is not None:
        raise UserError(f"baselines=true: {reason}; restore it (`git checkout extensions`), or leave baselines out")
    validate_new_name(config.run.name)
    # A recorded run may come from a larger machine, so this holds for new runs only.
    threads, cores = config.runtime.num_threads or 0, usable_cpus()
    if threads > THREADS_PER_CORE * cores:
        raise UserError(
            f"runtime.num_threads={threads}: {cores} cores are usable here; give runtime.num_threads={cores}"
        )


def validate(config: AppConfig) -> None:
    """Refuse values that cannot work, before anything is built."""
    check(config)
    for group in key_groups(type(config)):
        group.validate(config)
