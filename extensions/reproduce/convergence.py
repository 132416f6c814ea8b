"""MLPerf's check of reference convergence, by the package that MLCommons publishes for it."""

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from app.kinds.trackers import MLPERF_LOG
from common.errors import last_line

RULESETS = {"dlrm": "2.1.0", "dlrm_dcnv2": "6.0.0", "dlrmv4": "6.1.0"}  # the last that have the benchmark's points
INSTALL = "pip install mlperf-logging"


def check_convergence(benchmark: str, runs: Sequence[Path]) -> str:
    """What the checker says of the logs of runs, one a seed; or why it was not asked."""
    title = f"MLPerf's reference convergence ({benchmark})"
    logs = [run / MLPERF_LOG for run in runs if (run / MLPERF_LOG).is_file()]
    if benchmark not in RULESETS:
        return f"{title}: not checked, as the rules have no points of it."
    if importlib.util.find_spec("mlperf_logging") is None:
        return f"{title}: not checked; install the checker by `{INSTALL}`, and run the same command again."
    if not logs:
        return f"{title}: not checked, as no run has a log ({MLPERF_LOG})."
    with tempfile.TemporaryDirectory() as directory:
        for number, log in enumerate(logs):
            shutil.copy(log, Path(directory) / f"result_{number}.txt")
        command = [sys.executable, "-m", "mlperf_logging.rcp_checker", directory, "--rcp_version", RULESETS[benchmark]]
        command += ["--log_output", str(Path(directory) / "rcp_checker.log")]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
    reports = [line.partition(" - ")[2] for line in process.stderr.splitlines() if "RCP test" in line]
    fault = f"the checker failed: {last_line(process.stderr, 'no output')}"
    verdict = reports[-1].partition(", consider")[0] if reports else fault
    return f"{title}, rules {RULESETS[benchmark]}, {len(logs)} logs: {verdict}."
