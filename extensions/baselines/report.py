"""The report's part on baselines: comparisons with a run's model, a sentence, and the AUC of each column."""

from app.kinds.metrics import AUC, BASE_RATE, COMPARED, NE
from app.report.additions import Additions, FoldedTable
from app.report.read import RunFiles
from app.report.tables import ReportTable, halves
from app.report.verdict import ComparisonRow
from app.report.words import figure, signed
from common.documents import convert
from extensions.baselines.documents import Baseline, Baselines

BASELINE_NAMES = {
    BASE_RATE: "the base rate",
    "columns": "single columns",
    "lr": "logistic regression",
    "trees": "boosted trees",
}


def additions(run: RunFiles) -> Additions:
    """Return the tables and the sentence for a run's baselines, or the reason for their absence."""
    figures, sentence = figures_of(run), baselines_sentence(run)
    return Additions(
        [] if figures is None else _comparisons(run, figures),
        [] if sentence is None else [sentence],
        [] if figures is None or not (figures.columns and figures.columns.rest) else [_single_columns(figures.columns)],
    )


def figures_of(run: RunFiles) -> Baselines | None:
    """Return the baselines in a run's summary."""
    recorded = run.summary.baselines if run.summary else None
    return None if recorded is None else convert(recorded, Baselines, "baselines")


def baselines_sentence(run: RunFiles) -> tuple[str, str] | None:
    """Return a sentence on whether the model earns its keep, with its kind: good, bad or plain.

    None if baselines were left out or are of another split.
    """
    if run.summary is not None and run.summary.no_baselines:
        return "plain", f"Compared with no baselines: {run.summary.no_baselines}."
    auc, figures = run.evaluation.auc, figures_of(run)
    if auc is None or figures is None:
        return None
    baselines = _by_name(run, figures)
    aucs = {name: one.auc for name, one in baselines.items() if one.auc is not None}
    if not aucs:
        return None
    best = max(aucs, key=lambda name: aucs[name])
    difference, interval = baselines[best].difference, baselines[best].difference_interval
    others = ", ".join(f"{name} {value:.4f}" for name, value in aucs.items())
    missing = "".join(f"; {BASELINE_NAMES[name]}: {reason}" for name, reason in figures.missing.items())
    of = f"(AUC {auc:.4f} against {others}{_sample_of(figures)}{missing}){_worse_probabilities(run, baselines)}"
    if difference is None:
        gain, side = auc - aucs[best], "behind" if auc < aucs[best] else "ahead of"
        reason = figures.not_compared or f"python -m app.baselines run={run.directory} compares them"
        return "plain", f"{abs(gain):.4f} AUC {side} {best}, not compared row by row: {reason} {of}."
    side = "Behind" if difference < 0 else "Ahead of"
    lead = f"{side} the best baseline, {best}, by {abs(difference):.4f}"
    if not interval:
        return "plain", f"{lead} AUC; too few rows of a label for a test {of}."
    lead = f"{lead} ± {(interval[1] - interval[0]) / 2:.4f} AUC on {figures.compared_rows:,} rows of {figures.split}"
    if interval[0] <= 0 <= interval[1]:
        return "plain", f"{lead} (95%), which cannot show whether it is real {of}."
    if difference > 0:
        return "good", f"The model earns its keep: {lead[0].lower()}{lead[1:]} (95%) {of}."
    return "bad", f"The model does not earn its keep yet: {lead[0].lower()}{lead[1:]} (95%) {of}."


def _worse_probabilities(run: RunFiles, baselines: dict[str, Baseline]) -> str:
    """Return a clause if a baseline has the lower NE, empty otherwise: AUC judges the order of rows alone."""
    ne = run.evaluation.figure(NE)
    by_ne = {name: one.ne for name, one in baselines.items() if one.ne is not None}
    best = min(by_ne, key=lambda name: by_ne[name], default=None)
    if ne is None or best is None or by_ne[best] >= ne:
        return ""
    return (
        f"; its probabilities are worse, NE {ne:.4f} against {by_ne[best]:.4f} of {best}: train.monitor=ne keeps the "
        "checkpoint by them"
    )


def _by_name(run: RunFiles, figures: Baselines) -> dict[str, Baseline]:
    """Return the baselines on the evaluation's split, except the base rate, by their names in words."""
    if figures.split != run.evaluation.split:
        return {}
    column = figures.columns.rest.get("column") if figures.columns else None
    by_name = {
        f"the label rates of {column} alone": figures.columns,
        BASELINE_NAMES["lr"]: figures.lr,
        BASELINE_NAMES["trees"]: figures.trees,
    }
    return {name: one for name, one in by_name.items() if one is not None}


def _comparisons(run: RunFiles, figures: Baselines) -> list[ComparisonRow]:
    """Return a row per baseline, with a remark on its AUC difference to the run on the same rows."""
    rows = []
    for name, one in _by_name(run, figures).items():
        remark = f"a simpler model on the same splits{_sample_of(figures)}"
        if one.difference is not None and one.difference_interval:
            reach = (one.difference_interval[1] - one.difference_interval[0]) / 2
            remark += (
                f"; this run {signed(one.difference, 4)} ± {reach:.4f} AUC on the same {figures.compared_rows:,} rows "
                "(95%)"
            )
        values = {**dict.fromkeys(COMPARED), AUC: one.auc, NE: one.ne}
        rows.append(ComparisonRow(f"{name[0].upper()}{name[1:]}", values, None, remark))
    return rows


def _sample_of(figures: Baselines) -> str:
    """Return which rows baselines learned from and were scored on, unless all."""
    parts = [("trained on", figures.rows, figures.of_rows), ("scored on", figures.eval_rows, figures.of_eval_rows)]
    phrases = [f"{purpose} {rows:,} of {of:,} rows" for purpose, rows, of in parts if rows < of]
    return f"; baselines {' and '.join(phrases)}" if phrases else ""


def _single_columns(columns: Baseline) -> FoldedTable:
    """Return the AUC of each column's label rates alone, best first."""
    aucs = convert(columns.rest.get("auc_of_each") or {}, dict[str, float], "baselines.columns.auc_of_each")
    rows = [[name, figure(auc)] for name, auc in sorted(aucs.items(), key=lambda item: -item[1])]
    return FoldedTable(
        "AUC of each column alone, by its label rates in train (0.5 is chance)",
        "AUC of each column alone",
        halves(ReportTable(["Column", "AUC"], rows, {1})),
    )
