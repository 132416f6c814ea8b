"""A run: its configuration, figures and report, alone and beside others."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clickwork.dataset import Dataset
from clickwork.errors import BAD_INPUT, Error, convert_errors
from clickwork.predictor import TableLike, open_run, row_scorer, run_arithmetic, trained_config, whole_table
from common.errors import UserError, last_line

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
        from app.scoring import compare_rows, labelled_rows

        trained = trained_config(self.path, data, platform)
        with open_run(self.path, trained, checkpoint) as (run, runtime):
            # The call is for its refusal and its line in the log.
            run.correction(correct_sampling)
            scorer = row_scorer(trained, run, runtime)
        rows = labelled_rows(scorer.encoder, whole_table(table, "table"))
        with run_arithmetic(trained, runtime):
            figures = compare_rows(scorer.predictor, *rows, split, correct_sampling, run.state.step)
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

    `directory`, which the page names at its end, is where the runs lie.
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


ROOT = Path(__file__).resolve().parents[1]
# As the command `clickwork`, in a directory with packages of the same names, too; it ends with this process.
PROGRAM = f"""import sys
sys.path[0] = {str(ROOT)!r}
from app.__main__ import main
from common.signals import end_with_parent
end_with_parent()
main()
"""
ERROR = "error: "
INTERRUPTED = 75  # EXIT_STOPPED of common.cli, which imports Hydra


def prepare(overrides: Sequence[str] = (), **data: Any) -> Dataset:
    """Make a dataset as `python -m data_prep` does, and show its progress.

    Args:
        overrides: keys as on the command line, such as "data.workers=2".
        data: keys of the group `data` with their values: raw="clicks.csv", path="data/ads".

    Raises:
        Error: with the error line of the command and status 2, or its last line and another status.
    """
    from common.compose import format_override

    values = {key: str(value) if isinstance(value, Path) else value for key, value in data.items()}
    typed = [f"data.{key}={format_override(value)}" for key, value in values.items()]
    return Dataset(_run("preprocess", [*overrides, *typed]).data.root)


def train(overrides: Sequence[str] = ()) -> Run:
    """Train as `python -m app.train` does, and show its log.

    An interrupt (the notebook's stop button, Ctrl-C) lets it save a checkpoint; the same call resumes.

    Args:
        overrides: keys as on the command line, such as "run.name=ads".

    Raises:
        Error: with the error line of the command and status 2; 75 if it was interrupted; or its last line and another
            status.
    """
    return Run(_run("train", overrides).run.dir)


@convert_errors()
def _run(name: str, overrides: Sequence[str]) -> Any:
    """Run a command to its end, pass its output on, and return its configuration, which tells where the result is."""
    from app.commands import COMMANDS
    from common.compose import compose_config
    from common.extensions import load

    if isinstance(overrides, (str, Mapping)):
        raise UserError(f'overrides: {type(overrides).__name__}; give a list of keys, such as ["run.name=ads"]')
    command = COMMANDS[name]
    config: Any = compose_config(load(command.schema or ""), command.config_dir, list(overrides), command.config)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, name, *overrides],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # so that an interrupt reaches it once, through this process
    )
    assert process.stdout is not None
    # The command saves a checkpoint before it ends, and the lines until then are shown, too. A handler, since an
    # exception could be raised in the middle of a line. Python sets handlers in the main thread alone.
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, lambda number, _: process.send_signal(number)) if is_main else None
    try:
        shown = []
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            shown.append(line)
        status = process.wait()
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
    if status:
        errors = [line.removeprefix(ERROR) for line in shown if line.startswith(ERROR)]
        if status == BAD_INPUT and errors:
            raise Error(errors[-1].rstrip())
        if status == INTERRUPTED:
            raise Error(f"{name} was interrupted, with a checkpoint; the same call resumes it", status)
        raise Error(last_line("".join(shown), f"{name} ended with exit status {status}"), status)
    return config
