"""python -m app.importance run=runs/NAME: what a run's model loses without each feature; in the run, and on stdout.

Each feature's values are permuted among rows of a split, a few times, and the loss of AUC (of RMSE, where labels are
numbers) is given with its interval. With slices=[column] the metrics of each value's rows are given, too. They are
written to importance.json of the run, and its report shows them.
"""

from dataclasses import replace
from pathlib import Path

from app.config import AppConfig, validate
from app.config.model import require_dlrm, require_own_scores
from app.data.shards import verify_splits
from app.record.reading import read_summary
from app.report.page import write_report
from app.runtime import process_group
from app.runtime.platform import Runtime
from app.training import predictor, resume
from app.training.labels import require_column
from app.training.predictor import Predictor
from app.training.resume import TrainedRun
from common.cli import EXIT_DONE
from common.documents import encode
from common.files import write_atomically
from data_prep.dataset.format import Manifest, mean_bag_sizes
from extensions.importance.documents import IMPORTANCE, Importance
from extensions.importance.keys import ImportanceConfig
from extensions.importance.permutation import ScoredRows, importances, slices_of


def main(config: ImportanceConfig) -> int:
    """Compute importances and slices, write them to the run, and return the exit status."""
    directory = Path(config.run)
    trained = resume.trained_config(directory, config.runtime, config.data.path)
    require_dlrm(trained.model, "importance")
    require_own_scores(trained.model, "importance")
    evaluation = replace(trained.eval, group_by=None, exact_rows=max(trained.eval.exact_rows, config.rows))
    trained = replace(trained, eval=evaluation)
    validate(trained)
    with process_group.joined(trained, process_group.READING) as runtime:
        run = resume.open_checkpoint(directory, config.checkpoint, trained.data.path, runtime)
        for column in config.slices:
            require_column("slices", column, trained.data, run.root, run.manifest)
        measured = _measure(config, trained, run, runtime)
        run.log_choice()
        if runtime.rank == 0:
            text = encode(measured, indent=1) + "\n"
            write_atomically(directory / IMPORTANCE, text.encode())
            write_report(directory)
            print(text, end="")
    return EXIT_DONE


def _measure(config: ImportanceConfig, trained: AppConfig, run: TrainedRun, runtime: Runtime) -> Importance:
    """Return the importances and slices of a checkpoint; a collective call."""
    split = config.split or trained.eval.split
    runtime.on_rank_0(lambda: verify_splits(run.root, run.manifest, [split], trained.data))
    scorer = predictor.load(run.path, trained, runtime, run.root, run.manifest)
    scored = ScoredRows(scorer, split, config.rows)
    norms, unknown = _norms(Path(config.run), scorer), _unknown_shares(run.root, run.manifest, split)
    features, missing = importances(scored, scorer, config, unknown, norms)
    return Importance(
        checkpoint=run.path.name,
        step=run.state.step,
        split=split,
        rows=len(scored.rows.labels),
        of_rows=scored.of_rows,
        repeats=config.repeats,
        seed=config.seed,
        metric=scored.figures.main,
        value=scored.figures.main_value or 0.0,
        features=features,
        missing=missing,
        slices={column: list(slices_of(scored, scorer, column)) for column in config.slices},
    )


def _norms(directory: Path, scorer: Predictor) -> dict[str, float]:
    """Return the mean norm of the rows of each sparse feature's (first) table, as the run's summary has it."""
    summary, arch = read_summary(directory), scorer.model.module.sparse_arch
    measured = summary.tables if summary else {}
    tables = {arch.feature_of[key]: table.name for table in reversed(arch.tables) for key in table.keys}
    return {feature: measured[name].mean_norm for feature, name in tables.items() if name in measured}


def _unknown_shares(root: Path, manifest: Manifest, split: str) -> dict[str, float]:
    """Return the share of a split's values without an id of their own, by feature; empty if they were not counted."""
    counts = (manifest.extra.get("out_of_vocabulary") or {}).get(split, {})
    sizes, rows = mean_bag_sizes(root, manifest, split), manifest.splits[split].rows
    return {name: count / max(1.0, rows * sizes.get(name, 1.0)) for name, count in counts.items()}
