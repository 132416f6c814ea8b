"""The dataset a run asks for: found, or made by data_prep in a process of its own."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.config import DataConfig
from common.cli import EXIT_BAD_INPUT, EXIT_STOPPED
from common.errors import UserError
from data_prep.dataset.format import MANIFEST_NAME, Manifest

FOR_RAW = ("encoding", "frequency_threshold", "max_ind_range", "schema", "workers")
REPOSITORY = Path(__file__).parents[2]


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
    """Run data_prep if the configuration names raw files, or a source and no dataset.

    data_prep itself leaves a dataset made from the same files with the same parameters as it is, and refuses
    to replace another. Once `stopped` says so, it is asked to stop, resumably.

    Raises:
        UserError: a key that has no effect on a dataset that is there already; or there is nothing to make one from.
        SystemExit: data_prep found bad input or was stopped; it has said so on stderr, and its status is handed on.
        RuntimeError: it failed otherwise.
    """
    overrides = _overrides(config)
    if overrides is None:
        return
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


def require_agreement(config: DataConfig, manifest: Manifest) -> None:
    """The dataset at data.path must be encoded as the configuration says, where it says anything.

    Raises:
        UserError: names the key that says otherwise.
    """
    for key, name in (("encoding", "name"), *((key, key) for key in ("frequency_threshold", "max_ind_range"))):
        asked, found = getattr(config, key), manifest.encoding.get(name)
        if asked is not None and asked != found:
            raise UserError(f"data.{key}={asked}: the dataset at data.path={config.path} was made with {found}; "
                            "give another data.path, or leave the key out")  # fmt: skip


def _overrides(config: DataConfig) -> list[str] | None:
    """data_prep's command line; None if the dataset is there."""
    for_synthetic = {f"synthetic.{key}": value for key, value in vars(config.synthetic).items()}
    if config.raw is None and config.path is not None:
        _refuse({**for_synthetic, "workers": config.workers, "schema": config.schema})
        return None
    root = dataset_path(config)
    if config.raw is None and config.source is None:
        if (root / MANIFEST_NAME).exists():
            return None
        raise UserError(
            f"{root}: no dataset here, and this recipe makes none by itself: give data.path=DATASET, or data.raw=FILES "
            "data.path=NEW to preprocess them, or data.source=criteo_kaggle or criteo_1tb to download them, or "
            "data.scale=tiny to try it on synthetic rows"
        )
    overrides = [f"data.path={_quote(str(root))}"]
    if config.raw is None:
        overrides.insert(0, f"data={config.source}")
    else:
        overrides.append(f"data.raw={_quote(config.raw)}")
    if config.raw is not None or config.source != "synthetic":
        _refuse(for_synthetic)
    values = {**{key: getattr(config, key) for key in FOR_RAW}, **for_synthetic, **_flat(config.prep)}
    return overrides + [f"data.{key}={_quote_value(value)}" for key, value in values.items() if value is not None]


def _flat(nested: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Values by dotted key."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return flat


def _refuse(idle: dict[str, object]) -> None:
    for key, value in idle.items():
        if value is not None:
            raise UserError(f"data.{key}={value}: has no effect with the data that is given; leave it out")


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}


def _quote_value(value: object) -> str:
    """Strings and lists quoted, numbers and truths as they are."""
    return str(value).lower() if isinstance(value, (bool, int, float)) else _quote(value)


def _quote(value: object) -> str:
    """As one value of Hydra's override grammar, whatever characters it has."""
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_quote(item) for item in value) + "]"
    text = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), str(value))
    return f"'{text}'"
