"""The dataset that a run asks for, which data_prep makes in a process of its own, and the configuration by it."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from app.config.app_config import AppConfig, is_own_table, table_values, validate
from app.config.data import FILES, DataConfig, own_files, preprocessing
from common.cli import EXIT_BAD_INPUT, EXIT_STOPPED
from common.command import log
from common.compose import convert
from common.documents import plain
from common.errors import UserError
from common.keys import nest
from common.signals import Interrupted
from data_prep import config as preparation
from data_prep.config import PICKLED, compared_keys, first_difference, given_values, keys_in_force
from data_prep.dataset.format import MANIFEST_NAME, Manifest, load_manifest, sampling_sentence, unseen_sentence
from data_prep.dataset.kinds import misleading_sentences
from data_prep.dataset.options import GENERATORS

NOT_OF_ROWS = ("source", "path", "allow_degenerate", *FILES)  # keys that are not compared with a dataset's
REPOSITORY = Path(__file__).parents[2]


def prepare(config: DataConfig) -> bool:
    """Run data_prep if the configuration names raw files, or a source; return whether it made the dataset.

    data_prep leaves a dataset alone that was made from the same files with the same parameters, and refuses to replace
    another; this process makes that check itself. A new dataset is made by a child process. A signal that interrupts
    this process is passed on to the child, which stops resumably before this process ends.

    Raises UserError: a key has no effect on the existing dataset; the dataset was made from other files or parameters;
    or there is nothing to make one from. Raises SystemExit: data_prep found bad input and reported it on stderr; with
    its status. Raises Interrupted: a signal stopped it; data_prep has said so on stderr if it was making a dataset.
    Raises RuntimeError: data_prep failed otherwise.
    """
    job = _job(config)
    if job is None:
        return False
    # The files of a published set are written by a command of its own.
    name, train = config.published_tables, config.train
    is_published = name in preparation.PublishedName.__members__ and train == f"data/{name}/train.csv"
    if is_published and not Path(str(train)).exists():
        raise UserError(f"{train}: no such file; python -m data_prep.published name={name} fetches and writes it")
    if (Path(str(job.data.path)) / MANIFEST_NAME).exists() and not job.data.overwrite:
        # Imported lazily: runs without data of their own do not need these modules.
        from data_prep.pipeline import preprocess

        preprocess(job.data)
        return False
    # The child has to find this checkout from any working directory.
    process = subprocess.Popen(
        [sys.executable, "-m", "data_prep", PICKLED],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])},
        stdin=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,  # so that a terminal's signals reach it only through this process
    )
    assert process.stdin is not None
    try:
        # A child that has ended breaks the pipe; its status then says why.
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(pickle.dumps(job))
        status = process.wait()
    except Interrupted as error:
        process.send_signal(error.signal)
        process.wait()
        raise
    if status == EXIT_STOPPED:  # the child itself was asked to stop
        raise Interrupted(signal.SIGTERM)
    if status == EXIT_BAD_INPUT:  # it has printed the reason
        raise SystemExit(status)
    if status:
        raise RuntimeError(f"python -m data_prep ended with exit status {status}")
    return True


def require_agreement(config: DataConfig, manifest: Manifest) -> None:
    """Require that the dataset was made with the settings that the user or the recipe gives."""
    values = {key: value for key, value in given_values(preprocessing(config)).items() if key not in NOT_OF_ROWS}
    if (difference := first_difference(values, manifest)) is not None:
        key, value, recorded = difference
        as_it_is = "leave it out" if key.partition(".")[0] in GENERATORS else f"data.{key}=null"
        raise UserError(
            f"data.{key}={value}: the dataset at data.path={config.path} was made with {recorded}; give another "
            f"data.path, or {as_it_is} to take it as it is"
        )
    # Without anything to make a dataset from, a key that is not compared would do nothing.
    if config.source is None and own_files(config) is None:
        compared = compared_keys(values, manifest)
        for key, value in values.items():
            if key not in compared:
                raise UserError(
                    f"data.{key}={value}: has no effect on the dataset at data.path={config.path}; leave it out, or "
                    "give another data.path and what to make it from (data.raw, data.train, or data.source=synthetic)"
                )


def keep_recorded_settings(config: DataConfig, manifest: Manifest) -> DataConfig:
    """Return the configuration with all settings that the dataset was made with, resolved ones too."""
    recorded = keys_in_force(manifest)
    generator_keys = [key for key in recorded if key.partition(".")[0] in GENERATORS]
    return convert(DataConfig, plain(config), *map(nest, recorded.items()), {"generator_settings": generator_keys})


def with_table_values(config: AppConfig, root: Path, manifest: Manifest) -> AppConfig:
    """Return the configuration with the values that follow from the dataset, checked anew; log them."""
    if not config.by_table:
        return config
    values = {key: value for key, value in table_values(manifest).items() if key in config.by_table}
    numbers = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in values.items()}
    words = " ".join(f"{key}={value}" for key, value in numbers.items())
    origin = "your own table" if is_own_table(manifest) else "as given"
    log.info("%s: %s: recipe=own_table (%s)", root, origin, words)
    # From here on these are ordinary values, so that a replay need not derive them again.
    config = convert(AppConfig, plain(config), *map(nest, values.items()), {"by_table": []})
    validate(config)
    return config


def warn(root: Path, manifest: Manifest, is_new: bool, class_weights: Sequence[float] | None) -> None:
    """Log what may mislead about the dataset and the rates learned from it.

    is_new: data_prep has just made it, and printed its own warnings. class_weights: of the loss.
    """
    printed = [] if is_new else [unseen_sentence(manifest), *misleading_sentences(manifest.extra)]
    for line in filter(None, [sampling_sentence(manifest, class_weights), *printed]):
        log.warning("%s: %s", root, line)


def _job(config: DataConfig) -> preparation.PrepConfig | None:
    """Return the configuration of the preprocessing to run; None if the dataset exists."""
    source, files, root = config.source, own_files(config), config.root
    if files is not None and source is not None and source.kind.group != "remote":
        raise UserError(f"data.source={source.value}: has no effect with {files}; leave one of them out")
    if source is None and files is None:
        if not (root / MANIFEST_NAME).exists():
            is_usual = config.path == config.default_path
            raise UserError(
                f"{root}: no dataset here; give data.path=DATASET, or data.raw=FILES data.path={root} to make it from "
                "them, or data.source=synthetic or criteo_kaggle to make it from those"
                + (", or data.scale=tiny to try the recipe on synthetic rows" if is_usual else "")
            )
        require_agreement(config, load_manifest(root))
        return None
    return preparation.PrepConfig(data=preprocessing(config))
