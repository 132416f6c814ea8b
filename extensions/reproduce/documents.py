"""reproduce.json: what a recipe's runs at several seeds came to. The registry's files are of this form, too."""

from pathlib import Path

from msgspec import Struct

from app.kinds.metrics import AUC, METRICS
from app.metrics.documents import rest
from common.documents import Json, Number, OpenDocument, decode, read_document
from common.errors import UserError

FORMAT, VERSION = "clickwork-reproduction", 1
DOCUMENT, PAGE = "reproduce.json", "reproduce.html"
VERDICTS = {True: "inside", False: "outside", None: "no verdict"}
SHORTEST = 12  # characters of a digest


class _Version(Struct):
    format: str | None = None
    version: int | None = None


class SeedRun(OpenDocument, kw_only=True):
    """The run of one seed; None: not measured, or not known before it ended.

    status: as in summary.json; or `unfinished`, or `not begun`. error: why it failed. manifest: SHA-256 of its
    manifest.json. samples_to_target: until train.target_auc, where it was reached.
    """

    seed: int
    status: str
    error: str | None = None
    manifest: str | None = None
    steps: int | None = None
    samples: int | None = None
    samples_to_target: int | None = None
    samples_per_second: Number | None = None
    seconds: Number | None = None
    joules: Number | None = None
    rest: Json = rest()


class SeedFigure(OpenDocument, kw_only=True):
    """A metric of a split over the finished seeds.

    values: by seed; mean, std and the mean's 95% interval (Student's t) of those that are not None. published, with
    its tolerance: null: there is none. inside: whether it lies in the interval, widened by the tolerance at both ends;
    None: no verdict. Of a published AUC that is train.target_auc: whether each finished run reached it.
    """

    split: str
    metric: str
    values: dict[str, Number | None]
    mean: Number | None
    std: Number | None
    low: Number | None
    high: Number | None
    published: Number | None
    tolerance: Number | None
    inside: bool | None
    rest: Json = rest()

    @property
    def label(self) -> str:
        """Its name for readers, such as AUC of test."""
        return f"{METRICS[self.metric].title} of {self.split}"


class SourceOf(Struct, kw_only=True):
    """Who published a figure, on which data and hardware, as `published.*` of the recipe has it."""

    source: str | None
    data: str | None
    hardware: str | None
    md5: list[str]


class DataOf(Struct, kw_only=True):
    """The dataset of the runs: digest of its manifest, encoding, rows by split, MD5 of given files."""

    digest: str | None
    encoding: str | None
    rows: dict[str, int]
    md5: list[str]


class Reproduction(OpenDocument, kw_only=True):
    """The document. arguments: of app.train, as typed; command: the whole line. Lists of None: not known yet.

    commit: of the code of the finished runs, and whether it had changes (`dirty`). seconds, joules: sums over the
    runs that ended, however they did. verdict: sentences with their kind (good, bad, plain).
    """

    format: str = FORMAT
    version: int = VERSION
    recipe: str
    command: str
    arguments: list[str]
    seeds: int
    runs: list[SeedRun]
    figures: list[SeedFigure]
    published: SourceOf
    dataset: DataOf | None
    machine: str | None
    versions: dict[str, str | None]
    commit: str | None
    dirty: bool
    seconds: Number | None
    joules: Number | None
    verdict: list[tuple[str, str]]
    rest: Json = rest()

    @property
    def main(self) -> str:
        """The metric that its models are judged by."""
        return self.figures[0].metric if self.figures else AUC

    def figure_of(self, metric: str) -> SeedFigure | None:
        """The figure of a metric that is published; else that of the test split, else of the evaluated one."""
        candidates = [figure for figure in self.figures if figure.metric == metric and figure.mean is not None]
        candidates.sort(key=lambda figure: (figure.published is None, figure.split != "test"))
        return candidates[0] if candidates else None


def read_reproduction(path: Path) -> Reproduction:
    """The document of a file.

    Raises:
        FileNotFoundError: there is none.
        UserError: it is none, damaged, or of another version.
    """
    remedy = "make it again with python -m app.reproduce"
    try:
        header = decode(path.read_bytes(), _Version)
    except ValueError as error:
        raise UserError(f"{path}: damaged ({error}); {remedy}") from error
    if header.format != FORMAT:
        raise UserError(f"{path}: is not of python -m app.reproduce (its format is {header.format}); remove it")
    if header.version != VERSION:
        raise UserError(f"{path}: of version {header.version} of its format, here {VERSION} is read; {remedy}")
    return read_document(path, Reproduction, remedy)
