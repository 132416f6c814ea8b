"""python -m app.evaluate run=runs/NAME: metrics of a run's checkpoint on a split, as JSON on stdout.

With data.raw=FILE they are those of labelled new rows, with the share of values that the dataset does not contain, by
column, and the differences to the split. With keep_scores=ROWS the scores of a split of at most that number of rows are
kept in the run, for a comparison row by row.
"""

if __name__ == "__main__":  # before the imports below, which may take seconds
    from app.commands import COMMANDS
    from common.cli import run

    run(COMMANDS["evaluate"])


import json
from dataclasses import replace
from pathlib import Path

from app.config.app_config import AppConfig, validate
from app.config.commands import EvaluateConfig
from app.config.model import require_dlrm
from app.data.split import verify_splits
from app.runtime import platform
from app.runtime.platform import Runtime
from app.scoring import compare_rows, labelled_rows
from app.training import checkpointer, evaluator, predictor
from app.training.checkpointer import TrainedRun
from app.training.predictor import require_task, task_of
from common.documents import Json, plain_object
from common.errors import UserError
from common.files import write_atomically
from data_prep.encoding import Encoder, read_new_rows


def main(config: EvaluateConfig) -> None:
    """Evaluate as configured."""
    directory = Path(config.run)
    trained = checkpointer.trained_config(directory, config.runtime, config.data.path)
    batch_size = config.global_batch_size or trained.eval.global_batch_size
    # The run's own setting is about the scores of the model that it serves.
    kept_rows = config.keep_scores or 0
    evaluation = replace(
        trained.eval, global_batch_size=batch_size, exact_rows=config.exact_rows, keep_scores=kept_rows
    )
    # The run's configuration, with the settings of this command.
    effective = replace(trained, eval=evaluation)
    validate(effective)
    split = config.split or effective.model.kind.eval_split
    with platform.joined(effective, platform.READING) as runtime:
        run = checkpointer.open_checkpoint(directory, config.checkpoint, effective.data.path, runtime)
        if kept_rows and not task_of(run.manifest).has_clicks:
            raise UserError(
                f"keep_scores={kept_rows}: scores are kept of clicks, and these labels are numbers; leave it out"
            )
        # The call is for its refusal and its line in the log, before any work is done.
        run.correction(config.correct_sampling)
        require_task(effective, run.root, run.manifest)
        figures = {**_measure(run, effective, runtime, config, split), "step": run.state.step}
        result = {
            "run": str(directory),
            **run.about,
            "global_batch_size": batch_size,
            **run.about_sampling(config.correct_sampling),
            **({"raw": config.data.raw} if config.data.raw else {}),
            **figures,
        }
        run.log_chosen_checkpoint()
        if runtime.rank == 0:
            text = json.dumps(result, indent=1) + "\n"
            if config.out:
                write_atomically(Path(config.out), text.encode())
            print(text, end="")


def _measure(run: TrainedRun, effective: AppConfig, runtime: Runtime, config: EvaluateConfig, split: str) -> Json:
    """Return the metrics of a checkpoint; a collective call.

    effective: the run's configuration, with the settings of `config`.
    """
    rows = None
    if config.data.raw is not None:
        require_dlrm(effective.model, f"data.raw={config.data.raw}")
        encoder = Encoder.load(run.root)
        shape = encoder.shape((*encoder.input_columns, *encoder.target_columns))
        rows = labelled_rows(encoder, read_new_rows(Path(config.data.raw), shape))
    else:
        runtime.on_rank_0(lambda: verify_splits(run.root, run.manifest, [split], effective.data))
    scorer = predictor.load(run.path, effective, runtime, run.root, run.manifest)
    if rows is not None:
        return compare_rows(scorer, *rows, split, config.correct_sampling, run.state.step)
    evaluation, limits = scorer.evaluate(split, corrected=config.correct_sampling), effective.eval
    if limits.keep_scores and evaluator.has_few_rows(
        limits.keep_scores, split, scorer.split(split).rows, limits.exact_rows
    ):
        evaluator.keep(scorer, evaluation, Path(config.run), run.state.step)
    return plain_object(evaluation.figures)
