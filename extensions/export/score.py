"""Score raw rows with the model in this directory, with numpy, pyarrow and onnxruntime alone.

    python score.py rows.csv [--out scores.csv]    .csv, .tsv, .txt, .json, .jsonl, .parquet; compressed (.gz), too
    python score.py --verify                       compare all files with their SHA-256 in manifest.json

    from score import score                        # this directory on sys.path
    score(table)                                   # rows in memory to [rows] float32

A score is the probability of a click, or the predicted number where labels are numbers. Rows are encoded as the
model's dataset was, by its vocabularies (encoder/). A missing column and an invalid value are refused.

Rows in memory are lists or arrays by column, a list of dicts, or a table with Arrow's C interface (pandas, polars,
pyarrow). None, NaN, and NA and NaT of pandas are missing values: empty fields.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence, Sized
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pyarrow as pa
from encoder.convert import excerpt, numbers_of, to_column, to_list
from encoder.errors import UserError
from encoder.files import NewRows, Shape, parse_file, rows_of_objects
from encoder.rows import RowCodec
from encoder.values import NUMBERS, Bags, Dialect, RawRows, numbered_rows

HERE = Path(__file__).resolve().parent
PACKED = (".gz", ".bz2", ".zst")
SCORED_ROWS = 4096  # rows encoded, and given to the model, at once at most
PADDED_IDS = 1 << 20  # ids of a feature's bags, padded to the longest, that are looked up at once


class Scorer:
    """The model and the encoder in a directory.

    columns: that rows must have. output: what a score is: probabilities or predictions.
    """

    def __init__(self, directory: Path = HERE, threads: int = 0) -> None:
        """threads: of ONNX Runtime; 0: one for each core.

        Raises UserError: the directory is not whole.
        """
        self._manifest = _read_manifest(directory)
        _require_sizes(directory, self._manifest["files"])
        self._rules = json.loads((directory / "encoder" / "rules.json").read_text(encoding="utf-8"))
        self.columns: list[str] = self._rules["columns"]
        self._single = [name for name in self._rules["sparse"] if name not in self._rules["bags"]]
        vocabularies = {}
        for name in self._rules["vocabularies"]:
            entries = _map_arrow(directory / "encoder" / f"{name}.arrow")
            vocabularies[name] = entries.column("value").to_numpy(), entries.column("id").to_numpy()
        self._codec = RowCodec(self._rules, vocabularies)
        names, dialect = tuple(self._rules["names"]), Dialect(**self._rules["dialect"])
        self.shape = Shape(names, self._rules["delimiter"], self._rules["label"], self.columns, dialect)
        # By column: the bag of each id, [rows, size].
        self._bags_of_ids: dict[str, Any] = {}
        for name in self._rules["expanded"]:
            [bags] = _map_arrow(directory / "encoder" / f"{name}.bags.arrow").column("bag").chunks
            self._bags_of_ids[name] = bags.values.to_numpy().reshape(len(bags), -1)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        model = directory / self._manifest["model"]
        self._session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        # A model of clicks gives logits, then probabilities; another one gives predictions alone.
        self.output: str = self._session.get_outputs()[-1].name
        self._inputs = {node.name for node in self._session.get_inputs()}

    def score(self, table: Any, name: str = "rows", numbers: Sequence[int] | None = None) -> Any:
        """Return the scores [rows] float32 of rows in memory.

        name: of the rows in errors; numbers: of each row, by default from 1.

        Raises UserError: a column is missing, or a value is invalid (row, column).
        """
        if isinstance(table, Sized) and not len(table):
            return np.zeros(0, np.float32)
        columns = self._required_columns(table, name)
        rows = len(next(iter(columns.values())))
        numbers = range(1, rows + 1) if numbers is None else numbers
        parts = [np.zeros(0, np.float32)]
        for start in range(0, rows, SCORED_ROWS):
            piece = slice(start, start + SCORED_ROWS)
            inputs = self.encode({column: values[piece] for column, values in columns.items()}, name, numbers[piece])
            parts.append(self.run(inputs))
        return np.concatenate(parts)

    def _required_columns(self, table: Any, name: str) -> dict[str, Any]:
        """Return the columns that the model reads. Raises UserError for a missing one or for unequal lengths."""
        columns = _columns_by_name(table, name, self.columns)
        if missing := [column for column in self.columns if column not in columns]:
            raise UserError(f"{name}: no column {missing[0]}; the model reads {', '.join(self.columns)}")
        columns = {column: to_column(columns[column], f"{name}, column {column}") for column in self.columns}
        if len({len(values) for values in columns.values()}) > 1:
            raise UserError(f"{name}: columns of different lengths; give each row every column")
        return columns

    def run(self, inputs: Mapping[str, Any], output: str | None = None) -> Any:
        """Return an output of the model, by default the scores [rows] float32, from its inputs as `encode` gives them.

        Raises UserError: an id is negative or beyond its table.
        """
        rows = len(next(iter(inputs.values())))
        # A bag takes as much memory as the longest one of its column, so long bags leave room for fewer rows at once.
        widest = max((array.shape[1] for name, array in inputs.items() if name.startswith("ids_")), default=1)
        step = max(1, min(SCORED_ROWS, PADDED_IDS // widest))
        parts = [np.zeros(0, np.float32)]
        for start in range(0, rows, step):
            piece = {name: array[start : start + step] for name, array in inputs.items()}
            try:
                parts.append(self._session.run([output or self.output], piece)[0])
            except Exception as error:  # ONNX Runtime's own
                if "out of data bounds" not in str(error):
                    raise
                raise UserError(
                    "ids: one is negative or beyond its table; manifest.json has the rows of each"
                ) from None
        return np.concatenate(parts)

    def encode(self, table: Any, name: str = "rows", numbers: Sequence[int] | None = None) -> dict[str, Any]:
        """Return the model's inputs: dense_features [B, N], ids [B, F] of columns of one id, ids_COLUMN [B, M] of bags.

        A bag is filled with -1. Raises UserError as `score` does.
        """
        columns = self._required_columns(table, name)
        rows = len(next(iter(columns.values())))
        batch = RawRows(columns, rows, numbered_rows(name, range(1, rows + 1) if numbers is None else numbers))
        if self._rules["kind"] == "ids":
            dense, bags = self._read_ids(batch)
        else:
            parsed = self._codec.parse(batch)
            dense = self._codec.dense(parsed)
            bags = {name: self._codec.bags(parsed, name)[0] for name in self._codec.features}
        # In an expanded column (data.multi_hot of the dataset) each id is replaced by its bag of fixed size.
        for name, bag_of_id in self._bags_of_ids.items():
            members = bag_of_id[bags[name].ids]
            bags[name] = Bags(members.reshape(-1), np.arange(len(members) + 1) * members.shape[1])
        inputs = {"dense_features": dense.astype(np.float32)} if "dense_features" in self._inputs else {}
        if self._single:
            inputs["ids"] = np.stack([bags[name].ids for name in self._single], axis=1).astype(np.int64)
        for name in self._rules["bags"]:
            lengths = bags[name].lengths
            matrix = np.full((len(lengths), max(1, int(lengths.max(initial=0)))), -1, np.int64)
            matrix[np.arange(matrix.shape[1]) < lengths[:, None]] = bags[name].ids
            inputs[f"ids_{name}"] = matrix
        return inputs

    def _read_ids(self, batch: RawRows) -> tuple[Any, dict[str, Bags]]:
        """Return dense features [B, N] and bags of ids by feature, as rows of a dataset without raw rows hold them."""
        dense = np.zeros((batch.rows, len(self._rules["dense"])))
        for place, name in enumerate(self._rules["dense"]):
            # A missing number is 0; one beyond 3.4e38 would be infinite as the model's float32.
            dense[:, place] = numbers_of(batch.columns[name], NUMBERS, batch.locator_of(name), 0.0, 3.4e38)
        bags = {}
        for name in self._rules["sparse"]:
            locator, rows = batch.locator_of(name), self._rules["num_embeddings"][name]
            fields = [value if isinstance(value, list) else [value] for value in to_list(batch.columns[name])]
            members = [member for field in fields for member in field]
            owners = np.repeat(np.arange(batch.rows), [len(field) for field in fields]).tolist()
            ids = []
            for row, member in zip(owners, members, strict=True):
                is_text = isinstance(member, str) and member.isascii() and member.isdecimal()
                # bool is no id, though it is an int.
                number = int(member) if is_text or type(member) is int else -1
                if not 0 <= number < rows:
                    raise UserError(f"{locator(row)}: {excerpt(member)} is no id from 0 to {rows - 1}; correct it")
                ids.append(number)
            is_bag = name in self._rules["bags"] and name not in self._bags_of_ids
            if not is_bag and len(ids) != batch.rows:
                raise UserError(
                    f"{batch.locator(0)}, column {name}: {len(members)} ids in {batch.rows} rows; give one each"
                )
            offsets = np.cumsum([0, *map(len, fields)]) if is_bag else np.arange(len(ids) + 1)
            bags[name] = Bags(np.array(ids, np.int64), offsets)
        return dense, bags


# The scorer of this directory, opened once.
_default_scorer = cache(Scorer)


def score(table: Any) -> Any:
    """Return the scores [rows] float32 of rows in memory. Raises UserError as Scorer does."""
    return _default_scorer().score(table)


# ---- files


def _read_manifest(directory: Path) -> Any:
    """Return manifest.json. Raises UserError if the directory has none, so is not whole."""
    try:
        return json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{directory}: no whole export, which has a manifest.json ({error}); export again") from None


def _require_sizes(directory: Path, files: Mapping[str, Any]) -> None:
    """Raise UserError for a file that is missing or of another size; files: `files` of manifest.json.

    Each start asks for sizes, which reads no file; `verify` compares the contents.
    """
    for name, digest in files.items():
        path = directory / name
        if not path.is_file() or path.stat().st_size != digest["bytes"]:
            raise UserError(f"{path}: missing, or not of {digest['bytes']} bytes; export again")


def verify(directory: Path = HERE) -> None:
    """Compare all files with manifest.json. Raises UserError for the first that differs."""
    files = _read_manifest(directory)["files"]
    _require_sizes(directory, files)
    for name, digest in files.items():
        with open(directory / name, "rb") as file:
            checksum = hashlib.sha256()
            while block := file.read(1 << 20):
                checksum.update(block)
        if checksum.hexdigest() != digest["sha256"]:
            raise UserError(f"{directory / name}: its SHA-256 is not that of manifest.json; export again")


def _map_arrow(path: Path) -> pa.Table:
    """Map an Arrow file into memory."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


# ---- rows


def _columns_by_name(table: Any, name: str, required: Sequence[str]) -> Mapping[str, Any]:
    """Return the columns of an Arrow-like table, of a mapping or of dicts.

    Raises UserError for another object, and for two columns with the name of a required one.
    """
    if isinstance(table, Mapping):
        return table
    if isinstance(table, list) and all(isinstance(row, Mapping) for row in table):
        return rows_of_objects(name, dict(enumerate(table))).columns
    if not hasattr(table, "__arrow_c_stream__"):
        remedy = "give lists or arrays by column, a list of dicts, or a table of pandas, polars or pyarrow"
        raise UserError(f"{name}: {type(table).__name__} is not a table; {remedy}")
    try:
        table = pa.table(table)
    except (pa.ArrowException, TypeError, ValueError) as error:  # pandas', of sparse columns, and two of one name
        raise UserError(f"{name}: not readable through Arrow's interface ({str(error).splitlines()[0]})") from error
    if twice := [column for column in required if table.column_names.count(column) > 1]:
        raise UserError(f"{name}: a column is named twice, {twice[0]}; rename one")
    return dict(zip(table.column_names, table.columns, strict=True))


def read_rows(path: Path, scorer: Scorer) -> NewRows:
    """Read the rows of a file. Raises UserError: the file cannot be read, or has no such form."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    suffix = next((suffix for suffix in reversed(suffixes) if suffix not in PACKED), "")
    try:
        return parse_file(str(path), suffix, lambda: pa.input_stream(str(path)).read(), scorer.shape)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path}: not readable ({str(error).splitlines()[0]})") from error


# ---- the command line


def main() -> int:
    """Score a file; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="?", help="file of raw rows")
    parser.add_argument("--out", type=Path, help="CSV to write; default: standard output")
    parser.add_argument("--threads", type=int, default=0, help="of ONNX Runtime; default: one for each core")
    parser.add_argument("--verify", action="store_true", help="compare the directory's files with manifest.json")
    arguments = parser.parse_args()
    if arguments.rows is None and not arguments.verify:
        parser.error("give a file of rows, or --verify")
    try:
        if arguments.verify:
            verify()
            print(f"{HERE}: as it was written", file=sys.stderr)
        if arguments.rows is None:
            return 0
        scorer = Scorer(threads=arguments.threads)
        name = {"probabilities": "probability", "predictions": "prediction"}[scorer.output]
        rows = read_rows(arguments.rows, scorer)
        scores = scorer.score(rows.columns, rows.name, rows.numbers)
        lines = [np.format_float_positional(value, unique=True, trim="0") for value in scores]
        text = "\n".join([name, *lines, ""])
        if arguments.out is None:
            sys.stdout.write(text)
        else:
            arguments.out.write_text(text, encoding="utf-8")
    except UserError as error:
        print(f"score: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
