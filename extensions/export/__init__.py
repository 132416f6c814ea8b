"""Export of a run's model as a directory that scores raw rows: `python -m app.export` (docs/export.md)."""

from pathlib import Path

from common.command import Command
from common.extensions import Core


def register(core: Core) -> None:
    """Add the command."""
    core.add(
        Command(
            name="export",
            module="app.export",
            function="extensions.export.directory:main",
            summary="a run's model as a directory that scores raw rows",
            schema="extensions.export.documents:ExportConfig",
            config="schema",
            config_dir=Path(__file__).parent,
            check="extensions.export.documents:validate_export",
            leave="app.runtime.environment:leave",
        )
    )
