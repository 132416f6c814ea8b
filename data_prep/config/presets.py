"""Rules of each encoding, in one table, and the table sizes that follow from them.

`hash` and `vocabulary` are this project's own. The others repeat well-known programs, so that their published results
can be reproduced on the same numbers.
"""

import sys
from dataclasses import asdict, dataclass, replace
from enum import Enum
from operator import attrgetter
from typing import Any

import numpy as np

from common.errors import UserError
from data_prep.config.checks import refuse_unused_split_keys
from data_prep.config.keys import HELD_OUT, DataConfig, SplitConfig
from data_prep.dataset.options import DenseTransform, Encoding, LabelKind, SplitMethod, VocabularyOrder
from data_prep.dataset.table_spec import Table

KAGGLE_SEED = 123  # numpy_rand_seed of facebookresearch/dlrm
TORCHREC_SEED = 0
AMD_BLOG_SEED = 42
AMD_BLOG_TEST_SHARE = 0.2
AMD_BLOG_MAX_CATEGORIES = 10_000


@dataclass(frozen=True)
class Rules:
    """Rules by which values become ids and rows become splits.

    Attributes:
        encoding: encoding that the rules belong to.
        dense: transform of integers.
        order: order of a vocabulary's values; None: ids are value modulo max_ind_range.
        first_id: id of a vocabulary's first value.
        unknown_id: id of values outside the vocabulary.
        fitted_on_train: whether a vocabulary is fitted on train only, not on all rows.
        frequency_threshold: values with a lower count are not in the vocabulary.
        max_ind_range: maximum rows per table, or None.
        wraps: ids are taken modulo max_ind_range; otherwise values beyond it get unknown_id.
        max_categories: features with more values are dropped, or None.
        rounds_ids: train's ids are rounded to float32, as in TorchRec's shuffle.
        split: method that chooses the held-out rows; None: the user gave files for each split.
        held_out: share that the split method holds out.
        split_seed: seed of the split method.
        train_seed: seed of train's permutation by NumPy's legacy generator; None: rows keep their order.
        test_first: whether test, not val, is the first half of the held-out rows.
        negative_drop_rate: share of negatives to leave out.
        sampling_seed: seed that chooses these negatives.
        split_column: column that the split method reads, if it reads one.
    """

    encoding: Encoding
    dense: DenseTransform
    order: VocabularyOrder | None
    first_id: int = 1
    unknown_id: int = 0
    fitted_on_train: bool = True
    frequency_threshold: int = 1
    max_ind_range: int | None = None
    wraps: bool = False
    max_categories: int | None = None
    rounds_ids: bool = False
    split: SplitMethod | None = SplitMethod.fraction
    held_out: float = HELD_OUT
    split_seed: int = 0
    train_seed: int | None = None
    test_first: bool = False
    negative_drop_rate: float = 0.0
    sampling_seed: int = 0
    split_column: str | None = None

    def to_manifest(self) -> dict[str, Any]:
        """Convert to the manifest's form: plain values, the encoding as `name`, and no `split_column` if it is None."""
        entry = {key: value.value if isinstance(value, Enum) else value for key, value in asdict(self).items()}
        if self.split_column is None:
            del entry["split_column"]
        return {"name": entry.pop("encoding"), "dense_transform": entry.pop("dense"), **entry}

    @property
    def is_arranged(self) -> bool:
        """Return whether rows leave their order; otherwise shards are made of consecutive rows."""
        is_arranged = self.split is not None and self.split.algorithm.is_arranged
        return is_arranged or self.train_seed is not None or self.negative_drop_rate > 0

    @property
    def counts_while_parsing(self) -> bool:
        """Return whether values can be counted before the rows' positions are known."""
        is_assignment_fixed = not self.is_arranged if self.fitted_on_train else not self.negative_drop_rate
        return self.order is not None and is_assignment_fixed

    @property
    def shares_unknown_id(self) -> bool:
        """Return whether the cap on a table's rows may give values of the vocabulary the id of unknown ones."""
        wraps = self.wraps and self.max_ind_range is not None
        return wraps and self.order is not None and self.frequency_threshold > 1

    @property
    def needs_statistics(self) -> bool:
        """Return whether the transform of integers needs their range."""
        return self.dense in (DenseTransform.torchrec, DenseTransform.minmax)


_TORCHREC = Rules(
    Encoding.torchrec_fixed,
    DenseTransform.torchrec,
    VocabularyOrder.first_appearance,
    first_id=2,
    unknown_id=1,
    fitted_on_train=False,
    wraps=True,
    split=SplitMethod.last_day,
    train_seed=TORCHREC_SEED,
)
RULES = {
    Encoding.vocabulary: Rules(Encoding.vocabulary, DenseTransform.log1p, VocabularyOrder.frequency),
    Encoding.hash: Rules(Encoding.hash, DenseTransform.log1p, None, wraps=True),
    Encoding.torchrec: replace(_TORCHREC, encoding=Encoding.torchrec, rounds_ids=True),
    Encoding.torchrec_fixed: _TORCHREC,
    Encoding.dlrm_kaggle: Rules(
        Encoding.dlrm_kaggle,
        DenseTransform.log_float32,
        VocabularyOrder.first_appearance,
        first_id=0,
        fitted_on_train=False,
        train_seed=KAGGLE_SEED,
        test_first=True,
    ),
    Encoding.amd_blog: Rules(
        Encoding.amd_blog,
        DenseTransform.minmax,
        VocabularyOrder.value,
        first_id=0,
        fitted_on_train=False,
        max_categories=AMD_BLOG_MAX_CATEGORIES,
        split=SplitMethod.scikit_learn,
        held_out=AMD_BLOG_TEST_SHARE,
        split_seed=AMD_BLOG_SEED,
    ),
}
# Keys of `data` that set a rule, and the rule's name.
KEYS_OF_RULES = {
    "dense_transform": "dense",
    "frequency_threshold": "frequency_threshold",
    "max_ind_range": "max_ind_range",
    "max_categories": "max_categories",
    "vocabulary_order": "order",
    "sampling.negative_drop_rate": "negative_drop_rate",
    "sampling.seed": "sampling_seed",
}
OWN_TRANSFORM = DenseTransform.signed_log1p  # default of a user's own table, which may hold any numbers
SPLIT_IS_THEIRS = (Encoding.dlrm_kaggle, Encoding.amd_blog)  # encodings with a fixed split
REPEATED = {
    Encoding.torchrec: "TorchRec's",
    Encoding.torchrec_fixed: "TorchRec's",
    Encoding.dlrm_kaggle: "facebookresearch/dlrm's",
    Encoding.amd_blog: "AMD's",
}


def resolve_rules(data: DataConfig, num_sources: int, table: Table | None = None) -> Rules:
    """Return the rules of an encoding with the user's settings.

    Args:
        table: description of the user's own table.
    """
    encoding, split, is_own = data.encoding or Encoding.vocabulary, data.split, data.schema is not None
    rules = replace(RULES[encoding], dense=OWN_TRANSFORM) if is_own else RULES[encoding]
    given: dict[str, Any] = {name: attrgetter(key)(data) for key, name in KEYS_OF_RULES.items()}
    rules = replace(rules, **{name: value for name, value in given.items() if value is not None})
    if rules.order is None and rules.frequency_threshold > 1:
        raise UserError(f"data.frequency_threshold: has no effect with data.encoding={encoding.value}; leave it out")
    for key, owner in (("max_categories", Encoding.amd_blog), ("vocabulary_order", Encoding.vocabulary)):
        if getattr(data, key) is not None and encoding is not owner:
            raise UserError(f"data.{key}: has no effect with data.encoding={encoding.value}")
    if encoding in SPLIT_IS_THEIRS:
        for key, value, neutral in (
            ("max_ind_range", data.max_ind_range, None),
            ("frequency_threshold", data.frequency_threshold, 1),
            ("split.method", split.method, SplitMethod.auto),
            ("split.held_out", split.held_out, HELD_OUT),
            ("split.seed", split.seed, 0),
            ("split.column", split.column, None),
        ):
            if value not in (None, neutral):
                raise UserError(f"data.{key}: data.encoding={encoding.value} does not leave it open")
        return rules if data.train is None else _of_given_splits(rules)
    if data.train is not None:
        rules = _of_given_splits(rules)
        if split == SplitConfig():
            return rules
    has_time = table is not None and table.time is not None
    # The last rows of data.train's files are no days of their own, so chance is the default for Criteo's rows, too.
    method = (split.method or SplitMethod.auto).resolved(num_sources, is_own or data.train is not None, has_time)
    refuse_unused_split_keys(split, method)
    if data.train is not None and not method.algorithm.chooses:
        methods = ", ".join(each.value for each in SplitMethod if each.algorithm.chooses)
        raise UserError(
            f"data.split.method={method.value}: holds no rows out of data.train; give one of {methods}, or name the "
            "files in data.raw"
        )
    held_out = HELD_OUT if split.held_out is None else split.held_out
    column = _split_column(data, method, table)
    return replace(rules, split=method, held_out=held_out, split_seed=split.seed or 0, split_column=column)


def _split_column(data: DataConfig, method: SplitMethod, table: Table | None) -> str | None:
    """Return the column that a split method reads, by default the schema's time column; None if it reads none."""
    reads = method.algorithm.reads
    if reads == "labels" and table is not None and table.label_kind is LabelKind.number:
        raise UserError(
            f"data.split.method={method.value}: needs labels of 0 and 1, and {table.label} has numbers (kind: number); "
            "use random"
        )
    if not method.algorithm.has_column:
        return None
    if table is None:
        raise UserError(f"data.split.method={method.value}: needs data.schema, whose columns have names; use random")
    if data.split.column is not None:
        return data.split.column
    if reads == "times" and table.time is not None:
        return table.time.column
    remedy = "give data.split.column=COLUMN"
    if reads == "times":
        remedy += f", or write time: COLUMN in {data.schema}"
    raise UserError(f"data.split.method={method.value}: {remedy}")


def _of_given_splits(rules: Rules) -> Rules:
    """Return the rules for given splits: only train's rows decide ids, and 0 is the id of unknown values."""
    return replace(
        rules, split=None, held_out=0.0, split_seed=0, test_first=False, fitted_on_train=True, first_id=1, unknown_id=0
    )


def report_differences(rules: Rules) -> None:
    """Print the settings that make rows differ from those of the repeated program, if any, on stderr."""
    if rules.encoding not in REPEATED:
        return
    usual = RULES[rules.encoding]
    choices = {
        "data.dense_transform": (rules.dense.value, usual.dense.value),
        "data.split.method": (rules.split and rules.split.value, usual.split and usual.split.value),
        "data.max_ind_range": (rules.max_ind_range, usual.max_ind_range),
        "data.max_categories": (rules.max_categories, usual.max_categories),
        "data.sampling.negative_drop_rate": (rules.negative_drop_rate, usual.negative_drop_rate),
    }
    if rules.split is None:
        del choices["data.split.method"]
    deviations = [f"{key}={value}" for key, (value, published) in choices.items() if value != published]
    deviations += ["data.train"] if rules.split is None else []
    if deviations:
        message = f"output will differ from {REPEATED[rules.encoding]} because of {', '.join(deviations)}"
        print(f"data.encoding={rules.encoding.value}: {message}", file=sys.stderr)


def largest_id(rules: Rules, num_values: int | None) -> int:
    """Return a feature's largest possible id, before ids are rounded or wrapped as in TorchRec.

    Args:
        num_values: number of values in its vocabulary; None without one.
    """
    if num_values is None:
        assert rules.max_ind_range is not None
        return rules.max_ind_range - 1
    return max(rules.first_id + num_values - 1, rules.unknown_id)


def num_embeddings(rules: Rules, num_values: int | None) -> int:
    """Return the rows of a feature's table: one more than the largest possible id. Arguments as for `largest_id`."""
    largest = largest_id(rules, num_values)
    if rules.rounds_ids:
        largest = max(largest, int(np.float32(largest)))
    rows = largest + 1
    return min(rows, rules.max_ind_range) if rules.wraps and rules.max_ind_range else rows
