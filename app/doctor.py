"""python -m app.doctor: what is wrong with this machine, its packages, datasets and runs, and how to fix it.

Each line is ok, warn (works, but slower or with something missing) or fail, with the remedy. Exit status: 0 if
nothing fails, else 1.
"""

if __name__ == "__main__":  # before the imports below, which may take seconds
    from app.commands import COMMANDS
    from common.cli import run

    run(COMMANDS["doctor"])


import json
import sys
from collections.abc import Iterator
from pathlib import Path

from app.checks import devices, files, stack, system
from app.checks.check import Check, Verdict
from app.config.checks import require_place
from app.config.commands import DoctorConfig
from common.cli import EXIT_DONE
from common.files import write_atomically
from common.terminal import coloured

EXIT_FAILED = 1
COLOURS = {Verdict.ok: "green", Verdict.warn: "yellow", Verdict.fail: "red"}


def main(config: DoctorConfig) -> int:
    """Run all checks and report; return the exit status."""
    require_place("out", config.out)
    checks = []
    for check in run_checks(config):
        checks.append(check)
        if not config.json:
            print(describe(check), flush=True)
    counts = {verdict.value: sum(check.verdict is verdict for check in checks) for verdict in Verdict}
    document = {"checks": [{**check._asdict(), "verdict": check.verdict.value} for check in checks], **counts}
    text = json.dumps(document, indent=1) + "\n"
    if config.json:
        print(text, end="")
    else:
        print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    if config.out is not None:
        write_atomically(Path(config.out), text.encode())
    return EXIT_FAILED if counts["fail"] else EXIT_DONE


def run_checks(config: DoctorConfig) -> Iterator[Check]:
    """Run all checks; those that explain failures of others come first."""
    yield stack.check_python()
    yield from stack.check_packages(stack.installed_versions())
    verdict, probe = stack.probe_stack()
    yield verdict
    if probe is not None:
        yield from devices.check_devices(probe)
    yield from devices.check_clocks()
    yield from devices.check_groups()
    yield system.check_processors()
    yield system.check_memory()
    yield from system.check_nodes()
    yield system.check_shared_memory()
    yield from system.check_limits(has_gpu=bool(probe and probe.devices))
    yield system.check_host_name()
    root = Path(config.data.path or config.datasets)
    yield system.check_disk("disk for data", root)
    yield system.check_disk("disk for runs", Path(config.runs))
    if config.data.path is not None:
        yield files.check_dataset(root)
    else:
        yield from files.check_datasets(root)
    yield from files.check_runs(Path(config.runs))


def describe(check: Check) -> str:
    """Return a line for a terminal, with a second line if something has to be done."""
    verdict = coloured(f"{check.verdict.value:<4}", COLOURS[check.verdict], sys.stdout)
    line = f"{verdict}  {check.name}: {check.found}"
    return line if check.remedy is None else f"{line}\n      -> {check.remedy}"
