"""A dataset of rows: its schema, splits, vocabularies and batches."""

from collections.abc import Iterable, Iterator, Sequence
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clickwork.errors import convert_errors
from common.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from clickwork.batches import TorchBatches
    from data_prep.codec.values import Bags
    from data_prep.dataset.format import ShardArrays

BATCH_ROWS = 1 << 16  # default rows of a batch of `Dataset.batches`


class SplitSize(NamedTuple):
    """Rows of a split, and the share of positive labels; None if it has no rows, or labels are numbers."""

    rows: int
    label_rate: float | None


class Rows(NamedTuple):
    """Rows as NumPy arrays.

    labels: [B] int32, or float32 if they are numbers. dense: [B, N] float32. sparse: [B, F] int32, the columns of
    `Dataset.schema.single`. bags: by multi-hot column, values [L] and offsets [B + 1] of each row's ids. weights:
    sample weights [B] float32, if the dataset has them.
    """

    labels: "NDArray[Any]"
    dense: "NDArray[np.float32]"
    sparse: "NDArray[np.int32]"
    bags: "dict[str, Bags]"
    weights: "NDArray[np.float32] | None" = None


class Dataset:
    """A dataset of rows that `python -m data_prep` has made.

    Attributes:
        path: its directory.
        schema: names of the columns: label, dense, sparse, and ragged, those of `sparse` with several values a row;
            weight, the column of sample weights, or "".
        splits: rows and label rate of train, val and test.
        num_embeddings: rows of each sparse column's table; ids are below it.
    """

    @convert_errors()
    def __init__(self, path: str | Path) -> None:
        """Open a dataset. Raises Error if there is none, or it holds events."""
        import msgspec

        from data_prep.dataset.format import load_rows_manifest
        from data_prep.dataset.options import Schema

        self.path = Path(path)
        self._manifest = load_rows_manifest(self.path)
        self.schema: Schema = msgspec.convert(self._manifest.schema, Schema)
        self.splits = {name: SplitSize(split.rows, split.label_rate) for name, split in self._manifest.splits.items()}
        self.num_embeddings = dict(self._manifest.num_embeddings)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {split.rows:,}" for name, split in self.splits.items())
        return f"Dataset({str(self.path)!r}: {sizes} rows)"

    @convert_errors()
    def ids(self, column: str, values: Iterable[Any]) -> "NDArray[np.int32]":
        """Return the ids [n] of values of a sparse column, as raw rows have them; -1 for an unknown value.

        Args:
            column: its name.
            values: a list or an array; None, NaN and pandas' NA and NaT are an empty field. Of a part of a date, the
                dates; of a multi-hot column, single values of its lists, not whole fields.

        Raises:
            Error: there is no such column, or a value is invalid.
        """
        from data_prep.codec.convert import to_column
        from data_prep.encoding import Encoder

        self._require_column(column)
        return Encoder.load(self.path).ids_of(column, to_column(values, f"values of {column}"))

    @convert_errors()
    def values(self, column: str, ids: "Sequence[int] | NDArray[np.integer] | None" = None) -> list[str | None]:
        """Return the values of ids of a sparse column as text; None for an id without a value of its own.

        ids: None: all ids from 0 on.

        Raises:
            Error: an id is not a whole number, ids of this encoding do not tell values, or the dataset does not keep
                the values' texts.
        """
        from data_prep.lookup import vocabulary_values

        self._require_column(column)
        try:
            numbers = range(self.num_embeddings[column]) if ids is None else [index(number) for number in ids]
        except TypeError:
            raise UserError(f"ids of {column}: not whole numbers; give a list or an array of them") from None
        return vocabulary_values(self.path, self._manifest, column, numbers)

    @convert_errors()
    def batches(self, split: str, batch_size: int = BATCH_ROWS) -> Iterator[Rows]:
        """Yield a split's rows in their order on disk, `batch_size` at once and the rest at the end."""
        self._require_split(split)
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size}: must be at least 1")
        return self._batches(split, batch_size)

    @convert_errors()
    def torch(
        self,
        split: str = "train",
        batch_size: int | None = None,
        *,
        run: str | Path | None = None,
        seed: int | None = None,
        shuffle: bool | None = None,
        drop_last: bool | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> "TorchBatches":
        """Return a `torch.utils.data.IterableDataset` of batches in the order of training.

        An item is (dense [B, N] float32, a KeyedJaggedTensor of B bags a column, labels [B] float32); of a dataset with
        sample weights these [B] float32 come fourth.
        `set_epoch(epoch)` selects the epoch, from 0. A `DataLoader` of it needs batch_size=None.

        Args:
            split: its name.
            batch_size: rows of a global batch; None: that of the run, without which it must be given.
            run: directory of a run whose batch size, seed, order and bags are taken; None: those by default.
            seed: of the order; None: that of the run.
            shuffle: whether each epoch has an order of its own; None: as the run does in train, not in other splits.
            drop_last: whether to leave out rows that fill no whole batch; None: as the run in train, not in others.
            rank, world_size: of the process; each gets an equal part of each whole global batch. Of the last
                rows of an epoch, and with the run's train.deterministic=layout, a part can be smaller or empty.

        Raises:
            Error: there is no such split or run, or a key does not fit.
        """
        from dataclasses import replace

        from app.config.app_config import AppConfig
        from app.record.documents import read_config
        from clickwork.batches import TorchBatches
        from common.compose import convert

        self._require_split(split)
        if run is None and batch_size is None:
            raise UserError("batch_size: give it, or run=RUN, whose batches are then read")
        config = AppConfig() if run is None else convert(AppConfig, read_config(Path(run)))
        is_train = split == "train"
        data = replace(config.data, shuffle=is_train and config.data.shuffle if shuffle is None else shuffle)
        train = replace(
            config.train,
            global_batch_size=config.train.global_batch_size if batch_size is None else batch_size,
            seed=config.train.seed if seed is None else seed,
            drop_last=is_train and config.train.drop_last if drop_last is None else drop_last,
        )
        if train.global_batch_size < 1:
            raise UserError(f"batch_size={train.global_batch_size}: must be at least 1")
        # Every process has a row of each batch; parts need not be equal.
        if not 0 <= rank < world_size <= train.global_batch_size:
            raise UserError(
                f"rank={rank}, world_size={world_size}: rank must be below world_size, and that at most "
                f"batch_size={train.global_batch_size}"
            )
        config = replace(config, train=train, data=data)
        return TorchBatches(self.path, self._manifest, split, config, rank, world_size)

    def _batches(self, split: str, batch_size: int) -> Iterator[Rows]:
        """Yield what `batches` returns; a generator of its own, so that `batches` refuses arguments when called."""
        from data_prep.dataset.format import open_shard

        parts: list[ShardArrays] = []
        missing = batch_size
        # The decorator of `batches` ends before the first batch is made.
        with convert_errors():
            for shard in self._manifest.splits[split].shards:
                arrays, start = open_shard(self.path, split, shard, self._manifest), 0
                while start < shard.rows:
                    stop = min(shard.rows, start + missing)
                    parts.append(arrays.part(start, stop))
                    missing, start = missing - (stop - start), stop
                    if not missing:
                        yield self._join_parts(parts)
                        parts, missing = [], batch_size
            if parts:
                yield self._join_parts(parts)

    def _join_parts(self, parts: "list[ShardArrays]") -> Rows:
        """Return consecutive parts of shards, whose labels and weights are columns [n, 1], as one batch."""
        import numpy as np

        from data_prep.codec.values import join

        # The first three fields of a part are labels, dense and sparse.
        labels, dense, sparse = (np.concatenate([part[field] for part in parts]) for field in range(3))
        # A single part is a view of mapped files, and the caller may keep it for longer.
        bags = (join(column_parts).copy() for column_parts in zip(*(part.bags for part in parts), strict=True))
        by_column = dict(zip(self.schema.ragged, bags, strict=False))
        weights = [part.weights[:, 0] for part in parts if part.weights is not None]
        joined = np.concatenate(weights) if self.schema.weight else None
        return Rows(labels[:, 0], dense.astype(np.float32, copy=False), sparse, by_column, joined)

    def _require_split(self, split: str) -> None:
        if split not in self.splits:
            raise UserError(f"{self.path}: no split {split!r}; it has {', '.join(self.splits)}")

    def _require_column(self, column: str) -> None:
        if column not in self.num_embeddings:
            names = ", ".join(self.num_embeddings)
            raise UserError(f"{self.path}: no sparse column {column!r}; it has {names}")
