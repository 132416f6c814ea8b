"""MLPerf Training's log of a run, mllog.txt (docs/recipes.md)."""

from typing import TYPE_CHECKING

from app.config.kinds import TrackerKind
from common.extensions import Core, KeyGroup
from extensions.mlperf.keys import MLPerfConfig, is_wanted

if TYPE_CHECKING:
    from app.trackers import Setting
    from extensions.mlperf.log import MLPerf

MLPERF_LOG = "mllog.txt"


def register(core: Core) -> None:
    """Add the tracker and its keys."""
    core.add(
        KeyGroup("AppConfig", "mlperf", MLPerfConfig),
        TrackerKind(
            "mlperf", "mlperf.enabled", start, "mlperf_logging", MLPERF_LOG, is_wanted=is_wanted, of_clicks=True
        ),
    )


def start(setting: "Setting") -> "MLPerf":
    """Begin or continue the log."""
    from extensions.mlperf.log import MLPerf

    return MLPerf(setting.file, setting.config, setting.rows, setting.world_size, setting.from_step)
