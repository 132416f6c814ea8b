"""Every key of the configuration: its meaning, unit and limits. Values are in conf/."""

from app.config.app_config import CONFIG_DIR, AppConfig, from_plain, validate, validate_new_run
from app.config.commands import BundleConfig, EvaluateConfig, ReportConfig, TablePrecision, VerifyConfig
from app.config.data import DataConfig, DataScale, MultiHotConfig, VerifyData
from app.config.model import Interaction, ModelConfig
from app.config.optimizer import OptimizerConfig, ScheduleConfig
from app.config.published import PublishedConfig
from app.config.record import RecordConfig
from app.config.runtime import Compile, EnvironmentConfig, Platform, Precision, RuntimeConfig
from app.config.sharding import QCommConfig, ShardingConfig, TableShardingConfig, TopologyConfig
from app.config.train import CheckpointConfig, EvalConfig, LossConfig, LossName, OnNan, Pipeline, RunConfig, TrainConfig
from app.kinds.optimizers import OptimizerName
from app.kinds.schedules import ScheduleName

__all__ = [
    "CONFIG_DIR",
    "AppConfig",
    "BundleConfig",
    "CheckpointConfig",
    "Compile",
    "DataConfig",
    "DataScale",
    "EnvironmentConfig",
    "EvalConfig",
    "EvaluateConfig",
    "Interaction",
    "LossConfig",
    "LossName",
    "ModelConfig",
    "MultiHotConfig",
    "OnNan",
    "OptimizerConfig",
    "OptimizerName",
    "Pipeline",
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
    "validate",
    "validate_new_run",
]
