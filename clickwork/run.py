"""A run: its configuration, figures and report, alone and beside others."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clickwork.errors import convert_errors
from clickwork.predictor import TableLike, open_run, row_scorer, run_arithmetic, trained_config, whole_table
from common.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

    from app.report.compare import Comparison as ReportComparison
    from app.report.read import RunFiles

# A frame keeps the page's styles and scripts apart from those of the notebook.
FRAME = '<iframe srcdoc="{}" style="width: 100%; height: 40em; border: 0" title="{}"></iframe>'


class Run:
    """A run, finished or not; each property reads its file anew. A notebook shows its report.

    Attributes:
        path: its directory.
    """

    @convert_errors()
    def __init__(self, path: str | Path) -> None:
        """Open a run. Raises Error if the directory is not a run's."""
        self.path = Path(path)
        self._files()

    @property
    @convert_errors()
    def config(self) -> dict[str, Any]:
        """The resolved configuration, nested."""
        return self._files().config

    @property
    @convert_errors()
    def summary(self) -> dict[str, Any] | None:
        """The content of summary.json; None before the run's end."""
        return _plain(self._files().summary)

    @property
    @convert_errors()
    def metrics(self) -> "pa.Table":
        """The events of metrics.jsonl as an Arrow table: a row an event, null where an event lacks a column."""
        import pyarrow as pa

        events = [_plain(event) or {} for event in self._files().events]
        names = dict.fromkeys(name for event in events for name in event)
        return pa.table({name: pa.array([event.get(name) for event in events]) for name in names})

    @property
    @convert_errors()
    def curves(self) -> dict[str, Any] | None:
        """The curves of the last evaluation: ROC, precision and recall, calibration; None if there are none."""
        return _plain(self._files().curves)

    @convert_errors()
    def evaluate(
        self,
        table: TableLike,
        checkpoint: str | int | Path | None = None,
        *,
        split: str = "test",
        data: str | Path | None = None,
        platform: str = "auto",
        correct_sampling: bool = False,
    ) -> dict[str, Any]:
        """Return the metrics of labelled new rows, as `python -m app.evaluate data.raw=FILE` prints them.

        Args:
            table: rows with the column of labels, in memory; see `Predictor.predict`.
            checkpoint, data, platform, correct_sampling: as of `load`.
            split: the run's own split to compare with.

        Raises:
            Error: as `load` and `Predictor.predict`, or there are no labels.
        """
        from app.scoring.new_rows import LabelledRows

        trained = trained_config(self.path, data, platform)
        with open_run(self.path, trained, checkpoint) as (run, runtime):
            run.correction(correct_sampling)
            scorer = row_scorer(trained, run, runtime)
        rows = LabelledRows.encode(scorer.encoder, whole_table(table, "table"))
        with run_arithmetic(trained, runtime):
            figures = rows.compare(scorer.predictor, split, correct_sampling, run.state.step)
        return {**run.about, **figures}

    def __repr__(self) -> str:
        evaluation, name = (run := self._files()).evaluation, str(self.path)
        value = evaluation.main_value
        figure = "" if value is None else f", {evaluation.split} {evaluation.main} {value:.5f}"
        return f"Run({name!r}: {run.status}, step {run.steps:,}{figure})"

    @convert_errors()
    def _repr_html_(self) -> str:
        from app.report.page import run_page
        from app.report.read import refusing_other_versions

        run = self._files()
        with refusing_other_versions(str(self.path)):
            return f"<code>{escape(repr(self))}</code>" + FRAME.format(escape(run_page(run)), escape(run.name))

    def _files(self) -> "RunFiles":
        """Read what is in the run's directory now."""
        from app.report.read import read_run

        return read_run(self.path)


def _plain(document: Any) -> dict[str, Any] | None:
    from common.documents import plain_object

    return None if document is None else plain_object(document)


class Comparison:
    """Several runs side by side. A notebook shows the page of `python -m app.report runs=[…]`.

    Attributes:
        sentences: the verdict: speed, and the tests of the AUCs over seeds and row by row.
    """

    def __init__(self, comparison: "ReportComparison", directory: Path) -> None:
        self._comparison, self._directory = comparison, directory
        self.sentences = [sentence for _, sentence in comparison.sentences()]

    @property
    def table(self) -> "pa.Table":
        """The runs' status, seed, metrics and rate as an Arrow table of texts, as the page shows them."""
        import pyarrow as pa

        overview = self._comparison.overview()
        return pa.table(dict(zip(overview.columns, map(list, zip(*overview.rows, strict=True)), strict=True)))

    def __repr__(self) -> str:
        return "\n".join(self.sentences)

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{escape(sentence)}</li>" for sentence in self.sentences)
        return f"<ul>{items}</ul>" + FRAME.format(escape(self._comparison.page(self._directory)), "runs side by side")


@convert_errors()
def compare(runs: Sequence[Run | str | Path]) -> Comparison:
    """Compare runs as `python -m app.report runs=[…]` does.

    Args:
        runs: two or more runs, or their directories; configurations are compared with that of the first.

    Raises:
        Error: one is not a run's directory, or is named twice.
    """
    from app.report.compare import Comparison as ReportComparison
    from app.report.read import read_run, refusing_other_versions

    paths = [run.path if isinstance(run, Run) else Path(run) for run in runs]
    names = f"[{','.join(map(str, paths))}]"
    if len(paths) < 2 or len(set(paths)) < len(paths):
        raise UserError(f"runs={names}: " + ("give two runs or more" if len(paths) < 2 else "names a run twice"))
    files = [read_run(path) for path in paths]
    with refusing_other_versions(names):
        return Comparison(ReportComparison(files), paths[0].parent)
