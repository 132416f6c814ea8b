"""Every knob: its meaning and its unit. Values live in conf/; unknown keys and wrong types are refused."""

from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf

from app.config.data import DataConfig, DataScale, MultiHotConfig, VerifyData
from app.config.environment import EnvironmentConfig
from app.config.loss import LossConfig, LossName
from app.config.mlperf import MLPerfConfig
from app.config.model import Interaction, ModelConfig
from app.config.optimizer import OptimizerConfig, OptimizerName, ScheduleConfig, ScheduleName
from app.config.plan import PlanConfig
from app.config.published import PublishedConfig
from app.config.record import RecordConfig
from app.config.runtime import Platform, Precision, RuntimeConfig
from app.config.serving import TablePrecision
from app.config.sharding import QCommConfig, ShardingConfig, TableShardingConfig
from app.config.topology import TopologyConfig
from app.config.train import CheckpointConfig, EvalConfig, OnNan, Pipeline, RunConfig, TrainConfig
from common.errors import UserError

__all__ = [
    "CONFIG_DIR",
    "AppConfig",
    "CheckpointConfig",
    "DataConfig",
    "DataScale",
    "EnvironmentConfig",
    "EvalConfig",
    "EvaluateConfig",
    "Interaction",
    "LossConfig",
    "LossName",
    "MLPerfConfig",
    "ModelConfig",
    "MultiHotConfig",
    "OnNan",
    "OptimizerConfig",
    "OptimizerName",
    "Pipeline",
    "PlanAppConfig",
    "PlanConfig",
    "Platform",
    "Precision",
    "PublishedConfig",
    "QCommConfig",
    "RecordConfig",
    "ReportConfig",
    "RunConfig",
    "RuntimeConfig",
    "ScheduleConfig",
    "ScheduleName",
    "ShardingConfig",
    "TablePrecision",
    "TableShardingConfig",
    "TopologyConfig",
    "TrainConfig",
    "VerifyConfig",
    "VerifyData",
    "from_plain",
    "to_plain",
]

CONFIG_DIR = Path(__file__).parents[1] / "conf"


@dataclass
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
    mlperf: MLPerfConfig = field(default_factory=MLPerfConfig)
    tiny: dict[str, Any] = field(default_factory=dict)  # what data.scale=tiny changes, by dotted key

    @staticmethod
    def implied(composed: DictConfig) -> dict[str, Any]:
        """The recipe's tiny values, if data.scale=tiny: common.cli puts them below the user's own.

        Raises:
            UserError: the recipe has none.
        """
        if composed.data.scale is not DataScale.tiny:
            return {}
        if not composed.tiny:
            raise UserError("data.scale=tiny: this recipe does not say what it would be")
        return {"run.name": f"{composed.run.name}_tiny", "data.published_tables": None, **composed.tiny}


@dataclass
class PlanAppConfig(AppConfig):
    """The configuration of `python -m app.plan`: a run's, and what is asked of its plan."""

    plan: PlanConfig = field(default_factory=PlanConfig)


@dataclass
class EvaluateConfig:
    """The configuration of `python -m app.evaluate`."""

    run: str = MISSING  # the run's directory
    split: str = "test"
    tables: TablePrecision | None = None  # score with tables in another precision; null: as they were trained
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


@dataclass
class ReportConfig:
    """The configuration of `python -m app.report`; the tolerances decide about two platforms at one seed."""

    runs: list[str] = MISSING  # directories; one gives its report, several a comparison
    out: str | None = None  # the HTML file; null: report.html in the run, compare.html beside the first of several
    auc_tolerance: float = 0.001  # largest difference in AUC between platforms
    loss_tolerance: float = 0.01  # largest mean relative difference of the windows' losses between platforms


def to_plain(config: Any) -> Any:
    """A configuration as dicts, lists, strings and numbers. Without OmegaConf, for which it is 20 ms a checkpoint."""
    if is_dataclass(config):
        return {key.name: to_plain(getattr(config, key.name)) for key in fields(config)}
    if isinstance(config, dict):
        return {key: to_plain(value) for key, value in config.items()}
    if isinstance(config, (list, tuple)):
        return [to_plain(value) for value in config]
    return config.name if isinstance(config, Enum) else config


def from_plain(content: dict[str, Any]) -> AppConfig:
    """The other way, for a configuration read from a run's directory.

    Raises:
        OmegaConfBaseException: unknown keys or wrong types.
    """
    config = OmegaConf.create(content)
    synthetic = OmegaConf.select(config, "data.synthetic") or {}
    for key in [key for key, value in synthetic.items() if value is None]:  # of runs before this key was data_prep's
        del synthetic[key]
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(AppConfig), config))  # type: ignore
