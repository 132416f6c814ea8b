"""python -m app.evaluate run=runs/NAME: metrics of a run's checkpoint on a split, as JSON on stdout."""

import json
import logging
import sys
from dataclasses import replace
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException

from app import checkpoint, progress, record, runtime, session
from app.config import CONFIG_DIR, AppConfig, EvaluateConfig, from_plain
from app.data import verify_splits
from app.validation import validate
from common.cli import run_command
from common.errors import UserError
from data_prep.format import load_manifest, write_atomically

log = logging.getLogger("clickwork")


def main(config: EvaluateConfig) -> int:
    """Evaluate as configured; return the exit status."""
    directory = Path(config.run)
    trained = _trained_config(config, directory)
    here = runtime.start(trained.runtime, trained.train.seed, trained.train.deterministic)
    progress.log_to_terminal(here.rank)
    try:
        root = Path(trained.data.path or "")
        path = Path(here.on_rank_0(lambda: _checkpoint(config, directory)))
        state = checkpoint.read(path).state
        manifest = load_manifest(root)
        if manifest.digest != state["dataset_digest"]:
            raise UserError(f"{root}: not the dataset that {path} was trained on; give data_path=")
        here.on_rank_0(lambda: verify_splits(root, manifest, [config.split], trained.data.verify))
        this = session.build(trained, here, root, manifest)
        checkpoint.load_tensors(path, this.model, optimizer=None)
        result = {
            "run": str(directory),
            "checkpoint": path.name,
            "step": state["step"],
            **this.evaluate(config.split),
        }
        if here.rank == 0:
            text = json.dumps(result, indent=1) + "\n"
            if config.out:
                write_atomically(Path(config.out), text.encode())
            print(text, end="")
    finally:
        runtime.stop()
    return 0


def _checkpoint(config: EvaluateConfig, directory: Path) -> str:
    """The path of the checkpoint asked for, else of the run's newest that is not damaged."""
    if config.checkpoint:
        checkpoint.verify(Path(config.checkpoint))
        return config.checkpoint
    path, skipped = checkpoint.newest(directory / record.CHECKPOINTS)
    if path is None:
        raise UserError("; ".join(skipped) or f"run={directory}: no whole checkpoint yet; train it first")
    for reason in skipped:
        log.warning("checkpoint: passed over %s", reason)
    return str(path)


def _trained_config(config: EvaluateConfig, directory: Path) -> AppConfig:
    """The run's own configuration with this machine's runtime and what the user overrides."""
    try:
        trained = from_plain(record.read_config(directory))
    except OmegaConfBaseException as error:
        raise UserError(f"run={directory}: {record.CONFIG} is of another version ({error})") from error
    precision = config.runtime.precision or trained.runtime.precision
    trained.runtime = replace(config.runtime, precision=precision)
    trained.eval = replace(trained.eval, global_batch_size=config.global_batch_size)
    if config.data_path:
        trained.data = replace(trained.data, path=config.data_path)
    validate(trained)
    return trained


if __name__ == "__main__":
    sys.exit(run_command(main, EvaluateConfig, CONFIG_DIR, name="evaluate"))
