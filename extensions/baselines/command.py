"""python -m app.baselines run=runs/NAME: baselines on a run's splits, in its summary and report, and as JSON on stdout.

The base rate; each column's label rate by value alone; a logistic regression on one-hot ids and numbers; boosted trees
on out-of-fold rates and numbers. All are trained on the run's train split and scored on the split that it was evaluated
on. The run's model is compared with each on the same rows. They need scikit-learn (`pip install scikit-learn`);
the trees are LightGBM's where that is installed.
"""

import json
import logging
from pathlib import Path

from app.record.directory import save_summary
from app.record.reading import SUMMARY, read_config, read_manifest, read_summary
from app.report.page import write_report
from common.cli import EXIT_DONE
from common.documents import plain_object
from common.errors import UserError
from data_prep.dataset.format import load_rows_manifest
from data_prep.dataset.options import LabelKind
from extensions.baselines.after_training import POSITIVES_ALONE
from extensions.baselines.cache import computed
from extensions.baselines.keys import BaselinesConfig
from extensions.baselines.paired import compare


def main(config: BaselinesConfig) -> int:
    """Compute or look up baselines, write them to the run, and return the exit status."""
    logging.basicConfig(format="%(message)s")
    directory = Path(config.run)
    dataset, summary = read_manifest(directory).dataset, read_summary(directory)
    if summary is None:
        raise UserError(
            f"run={directory}: has no {SUMMARY}, so it is not finished; the command that began it resumes it"
        )
    root = config.data.path or dataset.path
    if root is None:
        raise UserError(f"run={directory}: was built from published table sizes, without data; train it on a dataset")
    manifest = load_rows_manifest(Path(root))
    if manifest.digest != dataset.digest:
        raise UserError(
            f"data.path={root}: another dataset than the run's, by its digest; give data.path=DIRECTORY of that one"
        )
    if manifest.label_kind is not LabelKind.click:
        raise UserError(
            f"run={directory}: baselines are of clicks, and the labels of {root} are numbers; its report compares with "
            "their mean"
        )
    recorded = read_config(directory)
    if (recorded["data"].get("negatives") or {}).get("per_positive") is not None:
        raise UserError(f"run={directory}: {POSITIVES_ALONE}")
    split = str(recorded["eval"]["split"])
    scored = computed(Path(root), manifest, split, directory, config)
    compare(scored, manifest, directory, summary.eval.step or None, config.rows)

    # Update the summary as it is now, since the run may have been resumed in the meantime.
    newest = read_summary(directory)
    if newest is None or (newest.steps, newest.digest) != (summary.steps, summary.digest):
        raise UserError(
            f"run={directory}: was trained further while its baselines were computed; when it has ended, "
            "give the same command again"
        )
    newest.baselines, newest.no_baselines = plain_object(scored.figures), None
    save_summary(directory, newest)
    write_report(directory)
    print(json.dumps(newest.baselines, indent=1))
    return EXIT_DONE
