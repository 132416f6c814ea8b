"""The dataset a run asks for: found, or made by data_prep in a process of its own."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from app.config import DataConfig
from common.cli import EXIT_BAD_INPUT, EXIT_STOPPED
from common.errors import UserError

REPOSITORY = Path(__file__).parent.parent


def dataset_path(config: DataConfig) -> Path:
    """Where the dataset is or will be.

    Raises:
        UserError: data.raw without data.path.
    """
    if config.path is not None:
        return Path(config.path)
    if config.raw is not None:
        raise UserError(f"data.path is not set: say where the shards made from data.raw={config.raw} shall go")
    return Path(config.default_path)


def prepare(config: DataConfig, stopped: Callable[[], bool]) -> None:
    """Run data_prep if the configuration names raw files, or neither raw files nor a dataset.

    data_prep itself leaves a dataset made from the same files with the same parameters as it is, and refuses
    to replace another. Once `stopped` says so, it is asked to stop, resumably.

    Raises:
        UserError: a key that has no effect on a dataset that is there already.
        SystemExit: data_prep found bad input or was stopped; it has said so on stderr, and its status is handed on.
        RuntimeError: it failed otherwise.
    """
    for_raw = {key: getattr(config, key) for key in ("encoding", "frequency_threshold", "max_ind_range", "workers")}
    for_synthetic = {f"synthetic.{key}": value for key, value in vars(config.synthetic).items()}
    overrides = [f"data.path={_quote(str(dataset_path(config)))}"]
    if config.raw is None and config.path is None:
        overrides.append("data=synthetic")
        effective, idle = {**for_raw, **for_synthetic}, {}
    elif config.raw is not None:
        overrides.append(f"data.raw={_quote(config.raw)}")
        effective, idle = for_raw, for_synthetic
    else:
        effective, idle = {}, {**for_raw, **for_synthetic}
    for key, value in idle.items():
        if value is not None:
            raise UserError(f"data.{key}={value}: has no effect with the data that is given; leave it out")
    if config.raw is None and config.path is not None:
        return
    overrides += [f"data.{key}={value}" for key, value in effective.items() if value is not None]
    process = subprocess.Popen([sys.executable, "-m", "data_prep", *overrides], env=_environment())
    while process.poll() is None:
        if stopped():
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.2)
    status = process.returncode
    if status in (EXIT_BAD_INPUT, EXIT_STOPPED):
        raise SystemExit(status)  # it has said why
    if status:
        raise RuntimeError(f"python -m data_prep ended with exit status {status}")


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}


def _quote(value: object) -> str:
    """As one value of Hydra's override grammar, whatever characters it has."""
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_quote(item) for item in value) + "]"
    text = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), str(value))
    return f"'{text}'"
