"""MLPerf Training's log of a run, mllog.txt (docs/recipes.md)."""

from app.config.kinds import TrackerKind
from common.command import later
from common.extensions import Core, KeyGroup
from extensions.mlperf.keys import MLPerfConfig, is_wanted

MLPERF_LOG = "mllog.txt"


def register(core: Core) -> None:
    """Add the tracker and its keys."""
    core.add(
        KeyGroup("AppConfig", "mlperf", MLPerfConfig),
        TrackerKind(
            "mlperf",
            "mlperf.enabled",
            later("extensions.mlperf.log:start"),
            "mlperf_logging",
            MLPERF_LOG,
            is_wanted=is_wanted,
            of_clicks=True,
        ),
    )
