"""The commands of this package, one row each, which `clickwork` offers, too."""

from pathlib import Path

from common.command import Command, index_by_name

CONFIG_DIR = Path(__file__).parent / "conf"


def _row(name: str, module: str, summary: str, function: str = "") -> Command:
    """Return a command of this package whose configuration is PrepConfig; function: by default `main` of the module."""
    return Command(
        name=name,
        module=module,
        function=function or f"{module}:main",
        summary=summary,
        schema="data_prep.config:PrepConfig",
        config_dir=CONFIG_DIR,
    )


COMMANDS = index_by_name(
    _row("preprocess", "data_prep", "raw rows to shards", "data_prep.__main__:main"),
    _row("verify-data", "data_prep.verify", "check a dataset against its manifest"),
    Command(
        name="published-data",
        module="data_prep.published",
        function="data_prep.published:main",
        summary="the splits of a small public dataset, as a paper drew them",
        schema="data_prep.config:PublishedDataConfig",
        config="schema",
        config_dir=CONFIG_DIR,
    ),
)
