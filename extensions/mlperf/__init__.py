"""MLPerf Training's log of a run, mllog.txt (docs/recipes.md)."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from app.config.kinds import TrackerKind
from common.extensions import Core, KeyGroup, keys_of_extension, later
from common.keys import key

if TYPE_CHECKING:
    from app.config.app_config import AppConfig

# Benchmarks of MLPerf's own recipes, by published.recipe.
BENCHMARKS = {"mlperf_v1": "dlrm", "mlperf_v2": "dlrm_dcnv2", "mlperf_v4": "dlrmv4"}


# Divisions. closed: MLPerf's own model, data and target; open: anything else.
MLPerfDivision: TypeAlias = Literal["closed", "open"]


@dataclass(frozen=True)
class MLPerfConfig:
    """Metadata of an MLPerf submission; the log is <run.dir>/mllog.txt."""

    decides_bits: ClassVar[bool] = False

    enabled: bool | None = key(None, "write the log; null: only for MLPerf's recipes")
    benchmark: str | None = key(None, "name of MLPerf's benchmark; null: the recipe's, else dlrm_dcnv2")
    division: MLPerfDivision | None = key(
        None, "closed: MLPerf's own model, data and target; null: closed for MLPerf's recipes, unless they are tiny"
    )
    organization: str = key("reference_implementation", "submitter")
    platform: str = key("reference_implementation", "name of the system")
    status: str = key("onprem", "status of the system: onprem, cloud, preview, research")


def is_wanted(config: "AppConfig") -> bool:
    """Return whether a run writes the log: by mlperf.enabled or, if that is null, by its recipe."""
    enabled = keys_of_extension(config, MLPerfConfig).enabled
    return config.published.recipe in BENCHMARKS if enabled is None else enabled


def fill_defaults(config: "AppConfig") -> MLPerfConfig:
    """Return the run's keys `mlperf`, with the recipe's or the general values in place of null."""
    keys, benchmark = keys_of_extension(config, MLPerfConfig), BENCHMARKS.get(config.published.recipe or "")
    is_closed = benchmark is not None and config.data.scale != "tiny"
    return replace(
        keys,
        benchmark=keys.benchmark or benchmark or "dlrm_dcnv2",
        division=keys.division or ("closed" if is_closed else "open"),
    )


MLPERF_LOG = "mllog.txt"


def register(core: Core) -> None:
    """Add the tracker and its keys."""
    core.add(
        KeyGroup("AppConfig", "mlperf", MLPerfConfig),
        TrackerKind(
            "mlperf",
            "mlperf.enabled",
            later("extensions.mlperf.log:MLPerf"),
            "mlperf_logging",
            MLPERF_LOG,
            is_wanted=is_wanted,
            of_clicks=True,
        ),
    )
