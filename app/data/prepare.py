"""The dataset a run asks for: found, or made by data_prep in a process of its own."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from app.config import DataConfig
from app.config.data import FILES, own_files, preprocessing
from common.cli import EXIT_BAD_INPUT, EXIT_STOPPED
from common.compose import convert
from common.errors import UserError
from common.keys import to_plain
from common.signals import Interrupted
from data_prep.config import keys
from data_prep.config.agreement import compared_keys, first_difference, keys_in_force
from data_prep.config.compose import PICKLED
from data_prep.config.keys import given_values
from data_prep.dataset.format import MANIFEST_NAME, Manifest, load_manifest
from data_prep.dataset.options import GENERATORS
from data_prep.published.sets import SETS

NOT_OF_ROWS = ("source", "path", "allow_degenerate", *FILES)  # keys that no dataset is compared by
REPOSITORY = Path(__file__).parents[2]


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
    values = {key: value for key, value in given_values(preprocessing(config)).items() if key not in NOT_OF_ROWS}
    if (difference := first_difference(values, manifest)) is not None:
        key = f"data.{difference.key}"
        as_it_is = "leave it out" if difference.key.partition(".")[0] in GENERATORS else f"{key}=null"
        raise UserError(
            f"{key}={difference.setting}: the dataset at data.path={config.path} was made with {difference.recorded}; "
            f"give another data.path, or {as_it_is} to take it as it is"
        )
    if _is_there(config):
        compared = compared_keys(values, manifest)
        for key, value in values.items():
            if key not in compared:
                raise UserError(
                    f"data.{key}={value}: has no effect on the dataset at data.path={config.path}; leave it out, or "
                    "give another data.path and what to make it from (data.raw, data.train, or data.source=synthetic)"
                )


def in_force(config: DataConfig, manifest: Manifest) -> DataConfig:
    """The configuration with the values that the dataset was made with, resolved ones too, whether given or not."""
    recorded = {key: value for key, value in keys_in_force(manifest).items() if not key.startswith("multi_hot.")}
    of_generators = [key for key in recorded if key.partition(".")[0] in GENERATORS]
    return convert(DataConfig, to_plain(config), *map(_nested, recorded.items()), {"generator_settings": of_generators})


def _nested(item: tuple[str, Any]) -> dict[str, Any]:
    """The value of a dotted key as nested values."""
    key, value = item
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


def _is_there(config: DataConfig) -> bool:
    """Whether the configuration names nothing to make the dataset from."""
    return config.source is None and own_files(config) is None


def _job(config: DataConfig) -> keys.PrepConfig | None:
    """Return the configuration of the preprocessing to run; None if the dataset exists."""
    source, files, root = config.source, own_files(config), config.root
    if files is not None and source is not None and source.kind.group != "remote":
        raise UserError(f"data.source={source.value}: has no effect with {files}; leave one of them out")
    if _is_there(config):
        if not (root / MANIFEST_NAME).exists():
            is_usual = config.path == config.default_path
            raise UserError(
                f"{root}: no dataset here; give data.path=DATASET, or data.raw=FILES data.path={root} to make it from "
                "them, or data.source=synthetic or criteo_kaggle to make it from those"
                + (", or data.scale=tiny to try the recipe on synthetic rows" if is_usual else "")
            )
        require_agreement(config, load_manifest(root))
        return None
    return keys.PrepConfig(data=preprocessing(config))


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}
