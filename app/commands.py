"""Every command, a row each: `clickwork`, `python -m`, and help read them here.

A command is a row of this table and its module, which begins as app/train.py does. Nothing is imported for the table.
"""

from pathlib import Path

from common.command import Command, index_by_name
from common.extensions import rows_of_extensions
from data_prep.commands import COMMANDS as DATA_PREP_COMMANDS

CONFIG_DIR = Path(__file__).parent / "conf"


def _row(
    name: str,
    summary: str,
    schema: str | None,
    check: str | None = None,
    *,
    config: str = "",
    function: str = "",
    has_groups: bool = False,
    leave: str = "app.runtime.environment:leave",
) -> Command:
    """Return the row of `python -m app.NAME`; conf/NAME.yaml names its groups of values, if it has any."""
    return Command(
        name=name,
        module=f"app.{name}",
        function=function or f"app.{name}:main",
        summary=summary,
        schema=schema,
        config=config or name,
        config_dir=CONFIG_DIR,
        has_groups=has_groups,
        check=check,
        leave=leave,
    )


_CONFIG, _CHECK = "app.config.commands", "app.config.app_config:validate"

COMMANDS = {
    **index_by_name(
        _row(
            "train",
            "prepare data if there is none, train, evaluate, write the run",
            "app.config.app_config:AppConfig",
            "app.config.app_config:validate_new_run",
            config="config",
            has_groups=True,
        ),
        _row("evaluate", "metrics of a run's checkpoint on a split, as JSON", f"{_CONFIG}:EvaluateConfig", _CHECK),
        _row("recommend", "rank candidates by a run's model", f"{_CONFIG}:RecommendConfig", _CHECK),
        _row(
            "bench",
            "lookups, products, exchanges and steps against this machine's measured limits",
            f"{_CONFIG}:BenchConfig",
            _CHECK,
            has_groups=True,
        ),
        _row(
            "verify",
            "replay a run and report whether, or where, it came out differently",
            f"{_CONFIG}:VerifyConfig",
            _CHECK,
        ),
        _row("bundle", "a run's record as one file, for verify on another machine", f"{_CONFIG}:BundleConfig"),
        _row(
            "report",
            "the HTML report of a run, finished or not; several runs side by side",
            f"{_CONFIG}:ReportConfig",
            function="app.report.__main__:main",
            leave="sys:exit",
        ),
        _row(
            "doctor",
            "what is wrong with packages, GPUs, memory, disks and datasets, and how to fix it",
            f"{_CONFIG}:DoctorConfig",
            leave="sys:exit",
        ),
        _row("launch", "run another command on several processes, or machines", None, leave="os:_exit"),
    ),
    **DATA_PREP_COMMANDS,
    **index_by_name(*rows_of_extensions(Command)),
}
