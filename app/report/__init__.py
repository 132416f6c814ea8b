"""What a person sees of runs: an HTML report of one, or several side by side."""

from pathlib import Path

from app.report.page import REPORT, run_page, write_page
from app.report.read import read_run

__all__ = ["REPORT", "write_report"]


def write_report(directory: Path, out: Path | None = None) -> Path:
    """Write a run's report from whatever its directory holds, to its report.html unless `out` is given; return where.

    Raises:
        UserError: it is not a run's directory.
    """
    return write_page(out or directory / REPORT, run_page(read_run(directory)))
