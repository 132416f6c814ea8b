"""python -m app.evaluate run=runs/NAME: metrics of a run's checkpoint on a split, as JSON on stdout.

With tables=fp16|bf16|int8|int4 they are those of the model as it would be served: its tables in that precision,
unsharded, the whole model on each process.
"""

import json
from dataclasses import replace
from pathlib import Path

from app import checkpoint, progress, resume, runtime, serving, session
from app.config import CONFIG_DIR, AppConfig, EvaluateConfig
from app.data import Split, verify_splits
from app.runtime import Runtime
from app.validation import validate
from common.cli import run_command
from data_prep.format import Manifest, load_manifest, write_atomically


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
        result = {
            "run": str(directory),
            "checkpoint": path.name,
            "step": state["step"],
            "tables": config.tables.value if config.tables else None,
            **_measure(path, trained, here, root, manifest, config),
        }
        if here.rank == 0:
            text = json.dumps(result, indent=1) + "\n"
            if config.out:
                write_atomically(Path(config.out), text.encode())
            print(text, end="")
    finally:
        runtime.stop()
    return 0


def _measure(
    path: Path, trained: AppConfig, here: Runtime, root: Path, manifest: Manifest, config: EvaluateConfig
) -> dict[str, float | int | str | None]:
    """Metrics of the checkpoint at `path`; a collective call."""
    if config.tables is None:
        this = session.build(trained, here, root, manifest)
        resume.load_tensors(path, this, with_optimizer=False)
        return this.evaluate(config.split)
    model = serving.load(path, trained, manifest, config.tables, here.device)
    split = Split(root, manifest, config.split, trained.data, here.rank, here.world_size)
    return session.measure(
        config.split,
        session.predict(trained, here, split, lambda batch: session.forward(model, batch, trained.runtime.precision)),
    )


if __name__ == "__main__":
    runtime.leave(run_command(main, EvaluateConfig, CONFIG_DIR, name="evaluate"))
