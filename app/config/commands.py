"""Configurations of the commands other than train."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from app.config.app_config import AppConfig
from app.config.model import require_dlrm
from app.config.train import EvalConfig, RuntimeConfig
from common.keys import MISSING, key, shown

FAMILIES = ("embedding_bag", "interaction", "mlp", "collective", "step")  # beginnings of the names of bench's cases
RANKING_SUFFIXES = (".json", ".csv")


CHECKPOINT = "best, last, a step, or a path; null: the best where the run keeps one, else the last"
CORRECT_SAMPLING = (
    "probabilities that are rates of all rows, of a model of data.sampling.negative_drop_rate or loss.class_weights"
)


@dataclass(frozen=True)
class ShapeConfig:
    """Sizes that replace the recipe's; null: the recipe's own."""

    batch_size: int | None = key(
        None, "samples of each process; null: train.global_batch_size over the processes", at_least=1
    )
    num_dense: int | None = key(None, "dense features; null: Criteo's 13", at_least=1)
    num_embeddings: list[int] | None = key(
        None, "rows of each table; null: published sizes of the recipe, but at most most_rows", at_least=1
    )
    most_rows: int = key(1_000_000, "largest table where num_embeddings is null", at_least=1)
    bag_sizes: list[int] | None = key(
        None, "ids per bag of each feature; null: data.multi_hot.sizes, or one", at_least=1
    )


@dataclass(frozen=True)
class BenchConfig(AppConfig):
    """Operators to measure, sizes, and duration."""

    operators: Any = key(None, "families or family/variant prefixes, a list; null: all")
    seconds: float = key(0.5, "seconds spent on each operator", above=0)
    shape: ShapeConfig = field(default_factory=ShapeConfig)
    out: str | None = key(None, "also write the JSON to this file", is_file=True)
    compare: list[str] = key([], "files that out=FILE.json wrote, at least two: a table of them; nothing is measured")

    @property
    def chosen_operators(self) -> list[str]:
        """Names, or beginnings of names, of operators to measure."""
        names = list(FAMILIES) if self.operators is None else self.operators
        return names if isinstance(names, list) else [names]

    def faults(self) -> Iterator[str]:
        if len(self.compare) == 1:
            yield f"compare={shown(self.compare)}: give at least two files"
        for name in self.chosen_operators:
            if not isinstance(name, str) or name.split("/")[0] not in FAMILIES:
                yield f"operators={name}: must begin with one of {', '.join(FAMILIES)}"
        require_dlrm(self.model, "bench")
        model = self.model
        if model.numeric != "dense_arch" or not model.dense_arch or model.embedding_dim % 4:
            yield (
                f"model.embedding_dim={model.embedding_dim}, model.dense_arch={shown(model.dense_arch)}, "
                f"model.numeric={model.numeric}: bench measures models with a dense_arch whose vectors have a "
                "multiple of 4 elements; give model=dlrm and a recipe of such a model"
            )
        yield from super().faults()


@dataclass(frozen=True)
class DatasetConfig:
    """The dataset that a command other than train reads."""

    path: str | None = key(None, "its directory; null: where the run found it")


@dataclass(frozen=True)
class DoctorConfig:
    """The directories to check, and the form of the result."""

    data: DatasetConfig = field(default_factory=DatasetConfig)  # null: all datasets in `datasets`
    datasets: str = key("data", "directory of the datasets")
    runs: str = key("runs", "directory of the runs")
    json: bool = key(False, "print JSON instead of lines")
    out: str | None = key(None, "also write the JSON to this file", is_file=True)


@dataclass(frozen=True)
class RecommendConfig:
    """The run, the candidates to score, and the number of results."""

    run: str = key(MISSING, "the run's directory", example="runs/quickstart")
    candidates: str = key(
        MISSING,
        "TSV, CSV, Parquet, JSON lines, or a JSON object of one user and the candidates; events: `all` items, too",
        example="ads.csv",
    )
    user: str | None = key(
        None,
        "a file of one row, in any of these forms: the columns that the candidates lack; events: the user's id",
        example="user.json",
    )
    time: int | None = key(
        None, "events, with user=ID candidates=FILE|all: seconds up to which the history goes; null: all"
    )
    id_column: str = key("id", "names the candidates, if there is such a column; else they are numbered from 1")
    correct_sampling: bool = key(False, CORRECT_SAMPLING)
    top_k: int | None = key(10, "how many to show, best first; null: all", at_least=1)
    out: str | None = key(None, "also write them to this .json or .csv file", is_file=True, example="ranking.csv")
    checkpoint: str | None = key(None, CHECKPOINT, example="last")
    data: DatasetConfig = field(default_factory=DatasetConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)  # threads, precision: the run's unless given

    def faults(self) -> Iterator[str]:
        if self.out is not None and not self.out.endswith(RANKING_SUFFIXES):
            yield f"out={self.out}: the name must end in {' or '.join(RANKING_SUFFIXES)}"


@dataclass(frozen=True)
class EvaluatedDataConfig(DatasetConfig):
    """The dataset of a run, or new rows."""

    raw: str | None = key(
        None, "labelled new rows to evaluate, a file as of candidates of recommend; null: the split", example="new.csv"
    )


@dataclass(frozen=True)
class EvaluateConfig:
    """The configuration of `python -m app.evaluate`."""

    run: str = key(MISSING, "the run's directory", example="runs/quickstart")
    split: str | None = key(
        None,
        "null: test; of a dataset of events val, its evaluated window; with data.raw, the split to compare with",
        example="val",
    )
    checkpoint: str | None = key(None, CHECKPOINT, example="last")
    data: EvaluatedDataConfig = field(default_factory=EvaluatedDataConfig)
    out: str | None = key(None, "also write the metrics to this JSON file", is_file=True, example="metrics.json")
    global_batch_size: int | None = key(None, "null: the run's eval.global_batch_size", at_least=1)
    exact_rows: int = key(
        EvalConfig.exact_rows, "of a larger split the AUC is from a histogram, with its error's bound", at_least=0
    )
    correct_sampling: bool = key(False, CORRECT_SAMPLING)
    keep_scores: int | None = key(
        None,
        "keep the scores of a split of at most this number of rows in the run; null: keep none",
        at_least=0,
        only_with={"data.raw": None},
    )
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)  # threads, precision: the run's unless given


@dataclass(frozen=True)
class BundleConfig:
    """The configuration of `python -m app.bundle`."""

    run: str = key(MISSING, "the run's directory", example="runs/quickstart")
    out: str | None = key(None, "the file to write; null: the run's directory with .bundle at its end", is_file=True)


@dataclass(frozen=True)
class VerifyConfig:
    """The configuration of `python -m app.verify`."""

    run: str | None = key(None, "the run's directory", is_common=True, example="runs/quickstart")
    bundle: str | None = key(
        None,
        "instead of a run, the file that app.bundle wrote of it; its dataset is made if it is missing",
        is_common=True,
        example="quickstart.bundle",
    )
    data: DatasetConfig = field(default_factory=DatasetConfig)
    tolerance: float = key(
        1e-4, "largest difference if bits cannot be equal: relative of losses, absolute of parameters", at_least=0
    )
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)  # threads, precision: the run's unless given

    def faults(self) -> Iterator[str]:
        if self.run is None and self.bundle is None:
            yield "configuration: run has no value; add run=..., such as run=runs/quickstart, or bundle=FILE"
        if self.run is not None and self.bundle is not None:
            yield f"bundle={self.bundle}: has no effect beside run={self.run}; leave one of them out"


@dataclass(frozen=True)
class ReportConfig:
    """The configuration of `python -m app.report`."""

    runs: list[str] = key(MISSING, "directories; one gives its report, several a comparison", example="[runs/a,runs/b]")
    out: str | None = key(
        None, "the HTML file; null: report.html in the run, or compare-NAMES.html beside the first", is_file=True
    )
