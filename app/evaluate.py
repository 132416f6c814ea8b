"""python -m app.evaluate run=runs/NAME: metrics of a run's checkpoint on a split, as JSON on stdout."""

import json
from dataclasses import replace
from pathlib import Path

from app import checkpoint, progress, resume, runtime, session
from app.config import CONFIG_DIR, EvaluateConfig
from app.data import verify_splits
from app.validation import validate
from common.cli import run_command
from data_prep.format import load_manifest, write_atomically


def main(config: EvaluateConfig) -> int:
    """Evaluate as configured; return the exit status."""
    directory = Path(config.run)
    trained = resume.trained_config(directory, config.runtime, config.data_path)
    trained.eval = replace(trained.eval, global_batch_size=config.global_batch_size)
    validate(trained)
    here = runtime.start(trained.runtime, trained.train.seed, trained.train.deterministic)
    progress.log_to_terminal(here.rank)
    try:
        root = Path(trained.data.path or "")
        path = Path(here.on_rank_0(lambda: resume.newest_of(directory, config.checkpoint)))
        manifest = load_manifest(root)
        state = checkpoint.read(path).state
        resume.require_dataset(path, state["dataset"], state["dataset_digest"], root, manifest)
        here.on_rank_0(lambda: verify_splits(root, manifest, [config.split], trained.data.verify))
        this = session.build(trained, here, root, manifest)
        resume.load_tensors(path, this, with_optimizer=False)
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


if __name__ == "__main__":
    runtime.leave(run_command(main, EvaluateConfig, CONFIG_DIR, name="evaluate"))
