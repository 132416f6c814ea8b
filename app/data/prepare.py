"""The dataset a run asks for: found, or made by data_prep in a process of its own."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.config import DataConfig
from app.config.data import FILES, own_files, preprocessing, source_of
from common.cli import EXIT_BAD_INPUT, EXIT_STOPPED
from common.errors import UserError
from common.signals import Interrupted
from data_prep.config import keys
from data_prep.config.agreement import compared_keys, first_difference, given_keys, keys_in_force
from data_prep.config.compose import PICKLED
from data_prep.dataset.format import MANIFEST_NAME, Manifest, load_manifest
from data_prep.dataset.options import GENERATORS
from data_prep.published.sets import SETS

LEAVE_OUT = (
    "leave it out, or give another data.path and what to make it from (data.raw, data.train, or data.source=synthetic)"
)
NOT_OF_ROWS = ("source", "path", "allow_degenerate", *FILES)  # keys of data_prep that are set here
REPOSITORY = Path(__file__).parents[2]


def dataset_path(config: DataConfig) -> Path:
    """Return the directory of the dataset, which need not exist yet.

    Raises:
        UserError: data.raw or data.train without data.path.
    """
    if config.path is not None:
        return Path(config.path)
    if (files := own_files(config)) is not None:
        raise UserError(f"data.path is not set: say where the shards made from {files} shall go")
    return Path(config.default_path)


def prepare(config: DataConfig) -> None:
    """Run data_prep if the configuration names raw files, or a source and no dataset.

    data_prep leaves a dataset made from the same files with the same parameters as it is, and refuses to replace
    another; this process does that itself. What is to be made is made by one of its own, which gets the signal that
    interrupts this one, and has stopped resumably before this one ends.

    Raises:
        UserError: a key that has no effect on a dataset that is there already, or other files or parameters than it was
            made from; or there is nothing to make one from.
        SystemExit: data_prep found bad input, which it has reported on stderr; with its status.
        Interrupted: a signal stopped it; where a dataset is being made, it has said so on stderr.
        RuntimeError: it failed otherwise.
    """
    job = _job(config)
    if job is None:
        return
    _require_written(config)
    if (Path(str(job.data.path)) / MANIFEST_NAME).exists() and not job.data.overwrite:
        from data_prep.pipeline import preprocess  # with modules that runs without data of their own do without

        preprocess(job.data)
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "data_prep", PICKLED],
        env=_environment(),
        stdin=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,  # so that a terminal's signals reach it by way of this process only
    )
    assert process.stdin is not None
    try:
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:  # if it has ended, its status says why
            stdin.write(pickle.dumps(job))
        status = process.wait()
    except Interrupted as error:
        process.send_signal(error.signal)
        process.wait()
        raise
    if status == EXIT_STOPPED:  # it was asked itself
        raise Interrupted(signal.SIGTERM)
    if status == EXIT_BAD_INPUT:
        raise SystemExit(status)  # it has printed the reason
    if status:
        raise RuntimeError(f"python -m data_prep ended with exit status {status}")


def _require_written(config: DataConfig) -> None:
    """Raises UserError where the splits of a published set are not there yet."""
    name, train = config.published_tables, config.train
    if name in SETS and isinstance(train, str) and train == f"data/{name}/train.csv" and not Path(train).exists():
        raise UserError(f"{train}: no such file; python -m data_prep.published name={name} fetches and writes it")


def require_agreement(config: DataConfig, manifest: Manifest) -> None:
    """The dataset must have been made as the configuration says, where the user or the recipe says anything.

    Raises:
        UserError: names the key that says otherwise, or that has no effect on a dataset that is there.
    """
    settings, path = _prep_settings(config), dataset_path(config)
    if (difference := first_difference(settings, manifest)) is not None:
        key = _typed(difference.key)
        as_it_is = "leave it out" if difference.key.partition(".")[0] in GENERATORS else f"{key}=null"
        raise UserError(
            f"{key}={difference.setting}: the dataset at data.path={path} was made with {difference.recorded}; give "
            f"another data.path, or {as_it_is} to take it as it is"
        )
    if source_of(config) is None:
        unused = {key: settings[key] for key in settings if key not in compared_keys(settings, manifest)}
        _refuse(unused, f"has no effect on the dataset at data.path={path}; {LEAVE_OUT}")


def in_force(config: DataConfig, manifest: Manifest) -> DataConfig:
    """The configuration with the values that the dataset was made with, resolved ones too, whether given or not."""
    recorded = keys_in_force(manifest)
    synthetic = {key.removeprefix("synthetic."): recorded.pop(key) for key in list(recorded) if "synthetic." in key}
    settings = {key: recorded.pop(key, None) for key in ("encoding", "frequency_threshold", "max_ind_range")}
    prep: dict[str, Any] = {}
    for key, value in recorded.items():
        group, _, name = key.rpartition(".")
        (prep.setdefault(group, {}) if group else prep)[name] = value
    if "chunk_bytes" in prep:
        prep["chunk_bytes"] = str(prep["chunk_bytes"])
    return replace(config, **settings, prep={**config.prep, **prep}, synthetic=replace(config.synthetic, **synthetic))


def _prep_settings(config: DataConfig) -> dict[str, Any]:
    """Keys of preparation that the user or the recipe gave, by their names in data_prep, with plain values."""
    settings = given_keys(preprocessing(config), list(_dotted(config.prep)))
    settings = {key: value for key, value in settings.items() if key not in NOT_OF_ROWS}
    return {"encoding": config.encoding, **settings} if config.encoding is not None else settings


def _dotted(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted keys of nested values."""
    for key, value in values.items():
        yield prefix + key
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")


def _typed(key: str) -> str:
    """A key of data_prep as it is typed here, where data.multi_hot is of the training."""
    return f"data.prep.{key}" if key.startswith("multi_hot.") else f"data.{key}"


def _job(config: DataConfig) -> keys.PrepConfig | None:
    """Return the configuration of the preprocessing to run; None if the dataset exists."""
    source, files = source_of(config), own_files(config)
    if files is not None and config.source not in (None, source):
        raise UserError(f"data.source={config.source}: has no effect with {files}; leave one of them out")
    if config.schema is not None and files is None and source is not None:
        raise UserError(
            f"data.schema={config.schema}: describes files of your own; name them in data.raw, and where the shards "
            "shall go in data.path"
        )
    root = dataset_path(config)
    if source is None:
        if not (root / MANIFEST_NAME).exists():
            raise UserError(
                f"{root}: no dataset here; give data.path=DATASET, or data.raw=FILES data.path={root} to make it from "
                "them, or data.source=synthetic or criteo_kaggle to make it from those"
                + (", or data.scale=tiny to try the recipe on synthetic rows" if config.path is None else "")
            )
        require_agreement(config, load_manifest(root))
        return None
    if source != "synthetic":
        unused = given_keys(keys.DataConfig(synthetic=config.synthetic))
        _refuse(unused, f"has no effect with data from {config.raw or config.train or source}; leave it out")
    return keys.PrepConfig(data=replace(preprocessing(config), path=config.prep.get("path") or str(root)))


def _refuse(unused: dict[str, object], reason: str) -> None:
    for key, value in unused.items():
        if value is not None:
            raise UserError(f"{_typed(key)}={value}: {reason}")


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}
