"""python -m app.report runs=[runs/NAME]: the HTML report of a run; of several, side by side.

One run: <run>/report.html, from whatever its directory holds, finished or not. Several: compare-NAMES.html beside
the first, with the differences in configuration and versions, a speed ratio with its interval, and tests of the AUCs
over seeds and row by row.
"""

if __name__ == "__main__":  # before the imports below, which may take seconds
    from app.commands import COMMANDS
    from common.cli import run

    run(COMMANDS["report"])


import logging
from pathlib import Path

from app.config.commands import ReportConfig
from app.report.compare import Comparison, page_name
from app.report.page import write_page, write_report
from app.report.read import read_run, refusing_other_versions
from common.errors import UserError


def main(config: ReportConfig) -> None:
    """Write the requested report and print its path."""
    logging.basicConfig(format="%(message)s")
    directories = [Path(run) for run in config.runs]
    if not directories:
        raise UserError("runs=[]: give at least one run's directory")
    if len(set(directories)) < len(directories):
        raise UserError(f"runs={config.runs}: names a run twice")
    if len(directories) == 1:
        print(write_report(directories[0], Path(config.out) if config.out else None))
        return
    runs = [read_run(path) for path in directories]
    path = Path(config.out) if config.out else directories[0].parent / page_name(directories)
    with refusing_other_versions(f"[{','.join(config.runs)}]"):
        comparison = Comparison(runs)
        sentences, page = comparison.sentences(), comparison.page(path.parent)
    for _, sentence in sentences:
        print(sentence)
    print(write_page(path, page))
