"""The dataset a run asks for: found, or made by data_prep in a process of its own."""

import os
import subprocess
import sys
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


def prepare(config: DataConfig) -> None:
    """Run data_prep if the configuration names raw files, or neither raw files nor a dataset.

    data_prep itself leaves a dataset made from the same files with the same parameters as it is, and refuses
    to replace another.

    Raises:
        UserError: a key that has no effect on a dataset that is there already.
        SystemExit: data_prep found bad input or was stopped; it has said so on stderr, and its status is handed on.
        RuntimeError: it failed otherwise.
    """
    path = dataset_path(config)
    handed_on = {
        "data.encoding": config.encoding,
        "data.frequency_threshold": config.frequency_threshold,
        "data.max_ind_range": config.max_ind_range,
        "data.workers": config.workers,
    }
    overrides = [f"data.path={_quote(str(path))}"]
    overrides += [f"{key}={value}" for key, value in handed_on.items() if value is not None]
    if config.raw is not None:
        overrides += [f"data.raw={_quote(config.raw)}"]
    elif config.path is None:
        overrides += ["data=synthetic", f"data.synthetic.rows={config.synthetic.rows}",
                      f"data.synthetic.seed={config.synthetic.seed}"]  # fmt: skip
    elif given := [f"{key}={value}" for key, value in handed_on.items() if value is not None]:
        raise UserError(f"{given[0]}: has no effect on the dataset that is at {path}; give data.raw to make one")
    else:
        return
    status = subprocess.run([sys.executable, "-m", "data_prep", *overrides], env=_environment(), check=False).returncode
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
    return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
