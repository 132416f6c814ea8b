"""Sources, splits, encodings and transforms by name; the columns of rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import ceil
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from common.documents import Json, decode
from common.errors import UserError
from common.extensions import row_constructor, rows_of_extensions
from data_prep.dataset.kinds import ROWS, NamedSource, SourceKind

OWN_FILES = SourceKind()
_CRITEO = SourceKind(ROWS, "data_prep.job:fetch_days", group="remote")


class DataSource(Enum):
    """Sources of rows other than the user's files.

    synthetic: generator with a known model; criteo_kaggle, criteo_1tb: Criteo's rows from mirrors; random: random ids,
    for measurements of speed. Extensions add others.
    """

    synthetic = (
        "synthetic",
        SourceKind(
            ROWS,
            "data_prep.synthetic:synthetic_sources",
            "data_prep.synthetic:days_directory",
            group="synthetic",
            figures="data_prep.stages.write:figures",
        ),
    )
    criteo_kaggle = "criteo_kaggle", _CRITEO
    criteo_1tb = "criteo_1tb", _CRITEO
    random = "random", SourceKind(ROWS, group="random", generator="data_prep.synthetic:RandomRows")
    _ignore_ = "added"  # or the loop's variable would become a source
    for added in rows_of_extensions(NamedSource):
        vars()[added.name] = (added.name, added.kind)

    _value_: str
    kind: SourceKind
    __new__ = row_constructor("kind")


GROUPS = tuple(dict.fromkeys(source.kind.group for source in DataSource if source.kind.group))
FILES = tuple(f"{source.kind.group}.{key}" for source in DataSource for key in source.kind.files)
GENERATORS = tuple(source.kind.group for source in DataSource if source.kind.generator or source.kind.figures)


class Encoding(Enum):
    """Encodings of categorical values as ids.

    vocabulary: ids from 1 by descending count in train; 0 for values that are rare or absent there.
    hash: value modulo max_ind_range. One pass and no memory, but values collide.
    torchrec: byte for byte the output of TorchRec's tsv_to_npys, sparse_to_contiguous and shuffle: the MLPerf
        dataset with its defects (ids of the train split rounded to float32, integers that overflow).
    torchrec_fixed: the same without the defects.
    dlrm_kaggle: the arrays of facebookresearch/dlrm for Criteo Kaggle.
    amd_blog: ids by ascending value, integers scaled to 0..1, columns of more than 10,000 values dropped, and
        scikit-learn's random 80/20 split, as in AMD's blog of 2024.
    """

    vocabulary = "vocabulary"
    hash = "hash"
    torchrec = "torchrec"
    torchrec_fixed = "torchrec_fixed"
    dlrm_kaggle = "dlrm_kaggle"
    amd_blog = "amd_blog"


class LabelKind(Enum):
    """Kinds of labels. click: 0 or 1, int32 in shards; number: any finite number, float32."""

    click = "click"
    number = "number"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of labels in shards."""
        return np.dtype(np.int32 if self is LabelKind.click else np.float32)


class DenseTransform(Enum):
    """Transforms of an integer x (missing: 0) to float32, or to int32 with `integers`.

    log1p: log(1 + max(x, 0)), rounded once.
    signed_log1p: log(1 + x) for x >= 0, -log(1 - x) for x < 0.
    log_float32: log(1 + max(x, 0)) in single precision, as facebookresearch/dlrm computes it.
    torchrec: log(x - m + 2), where m is the file's smallest integer over all columns.
    minmax: (x - low) / (high - low), where low and high are the column's range over all rows.
    raw: x; beyond 2^24 float32 rounds.
    integers: x as int32, exact. The export `bin` needs it; for Criteo's rows only.
    """

    log1p = "log1p"
    signed_log1p = "signed_log1p"
    log_float32 = "log_float32"
    torchrec = "torchrec"
    minmax = "minmax"
    raw = "raw"
    integers = "integers"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of the transformed integers."""
        return np.dtype(np.int32 if self is DenseTransform.integers else np.float32)


class VocabularyOrder(Enum):
    """Orders of ids: by descending count (ties by ascending value), first appearance, or ascending value."""

    frequency = "frequency"
    first_appearance = "first_appearance"
    value = "value"


@dataclass(frozen=True)
class SplitAlgorithm:
    """Properties of a split method.

    Attributes:
        held_out: returns the number of held-out rows from the rows of each source and the share; None: chance decides
            it.
        chooses: function of data_prep/stages/place.py that chooses the split of each row; "": the last rows,
            in order or after a permutation, are held out.
        reads: what decides beside chance: times or values in data.split.column, labels, or nothing.
        is_random: whether rows are drawn or permuted, so that data.split.seed matters.
        has_share: whether data.split.held_out matters.
        has_val: whether val gets half of the held-out rows; otherwise test gets all of them.
        needs_several: whether the method needs at least two raw files.
    """

    held_out: Callable[[Sequence[int], float], int] | None = None
    chooses: str = ""
    reads: Literal["", "times", "values", "labels"] = ""
    is_random: bool = False
    has_share: bool = True
    has_val: bool = True
    needs_several: bool = False

    @property
    def has_column(self) -> bool:
        """Return whether the values or times of data.split.column decide each row's split."""
        return self.reads in ("times", "values")

    @property
    def is_arranged(self) -> bool:
        """Return whether the method reorders rows; otherwise val and test are the last rows in their order."""
        return self.is_random or bool(self.chooses)


def _hold_out_share(by_source: Sequence[int], share: float) -> int:
    """Return the rows of val and test together, at least one each of three rows or more; by_source: rows by file."""
    # In float64, a product that should be a whole number may lie slightly below it.
    rows = int(sum(by_source) * share + 1e-9)
    return max(rows, 2) if share and sum(by_source) > 2 else rows


_CHOICES = "data_prep.stages.place"


class SplitMethod(Enum):
    """Methods that choose the held-out rows.

    auto: for the user's own table time if the schema names a time column, else random; for Criteo's rows last_day for
        several files and fraction for one.
    last_day: the last file in the order of data.raw.
    fraction: the last `held_out` of all rows.
    random: each row with probability `held_out`, by `seed`; rows keep their order within a split.
    scikit_learn: train_test_split with test_size `held_out` and random_state `seed`; val stays empty.
    time: the latest `held_out` of the rows by `column`; rows of one time are in one split.
    group: all rows of each value of `column` with probability `held_out`, by `seed`.
    stratified: `held_out` of the rows of each label, drawn by `seed`.
    """

    auto = "auto", SplitAlgorithm()
    last_day = "last_day", SplitAlgorithm(lambda by_source, _: by_source[-1], has_share=False, needs_several=True)
    fraction = "fraction", SplitAlgorithm(_hold_out_share)
    random = "random", SplitAlgorithm(chooses=f"{_CHOICES}:choose_by_chance", is_random=True)
    # Like scikit-learn's function, this rounds up.
    scikit_learn = (
        "scikit_learn",
        SplitAlgorithm(lambda by_source, share: ceil(sum(by_source) * share), is_random=True, has_val=False),
    )

    time = "time", SplitAlgorithm(_hold_out_share, f"{_CHOICES}:choose_by_time", "times")
    group = "group", SplitAlgorithm(chooses=f"{_CHOICES}:choose_by_group", reads="values", is_random=True)
    stratified = "stratified", SplitAlgorithm(_hold_out_share, f"{_CHOICES}:choose_by_label", "labels", is_random=True)

    _value_: str
    algorithm: SplitAlgorithm
    __new__ = row_constructor("algorithm")

    def resolve(self, num_sources: int, is_own: bool, has_time: bool = False) -> "SplitMethod":
        """Replace `auto` by the method it stands for. Raise UserError for too few raw files.

        num_sources: number of raw files. is_own: whether rows are of the user's own table. has_time: whether its schema
        names a time column.
        """
        if self is SplitMethod.auto and is_own:
            # A table may be sorted by any of its columns.
            return SplitMethod.time if has_time else SplitMethod.random
        if self is SplitMethod.auto:
            return SplitMethod.last_day if num_sources > 1 else SplitMethod.fraction
        if self.algorithm.needs_several and num_sources < 2:
            raise UserError(f"data.split.method={self.value}: needs at least two raw files; use fraction, or add a day")
        return self


CRITEO_NUM_DENSE = 13
CRITEO_NUM_SPARSE = 26
MAX_NUM_EMBEDDINGS = 1 << 31  # ids are int32

Feature = Annotated[str, Meta(pattern=r"\A[^./\\\0]+\Z")]  # names files and tables
TableRows = Annotated[int, Meta(ge=1, le=MAX_NUM_EMBEDDINGS)]


class Schema(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Column names in file order: the label, then N dense, then F sparse.

    `ragged` lists the multi-hot columns, in the order of `sparse`. `label_kind` is the kind of the labels. `weight` is
    the column of sample weights, which is no feature; "": none.
    """

    label: str
    dense: tuple[str, ...]
    sparse: tuple[Feature, ...]
    ragged: tuple[Feature, ...] = ()
    label_kind: LabelKind = LabelKind.click
    weight: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the label, dense and sparse columns, in file order; the weight is not among them."""
        return (self.label, *self.dense, *self.sparse)

    @property
    def single(self) -> tuple[str, ...]:
        """Return the sparse columns with one value per row."""
        return tuple(name for name in self.sparse if name not in self.ragged)


def to_json(entry: object) -> Json:
    """Convert a Struct to plain values, as JSON returns them, without fields that have their defaults."""
    # Decode first: before Python 3.11 an empty tuple may not be the default object, and would be written.
    return decode(msgspec.json.encode(decode(msgspec.json.encode(entry), type(entry))), Json)


CRITEO = Schema(
    label="label",
    dense=tuple(f"int_{i}" for i in range(CRITEO_NUM_DENSE)),
    sparse=tuple(f"cat_{i}" for i in range(CRITEO_NUM_SPARSE)),
)
