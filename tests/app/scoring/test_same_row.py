"""The same row is the same row: in evaluation, as a candidate in any form of file, and to the model as it is served.

What a form cannot say is refused by name; nothing is scored as another row.
"""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from torchrec import KeyedJaggedTensor

from app.checkpoint import files
from app.config.commands import TablePrecision
from app.config.train import RuntimeConfig
from app.runtime.platform import Runtime
from app.scoring import served_model
from app.training import checkpointer
from app.training.predictor import Evaluation, Predictor
from common.errors import UserError
from data_prep.dataset.format import load_manifest, open_shard
from tests.app.in_process import command_here, train_here
from tests.data_prep.conftest import prepare, seeds
from tests.error_lines import refused
from tests.oracles.own_tables import (
    RAW_KINDS,
    Column,
    OwnTable,
    dense_of,
    drawn_table,
    ids_of,
    objects_of,
    write_lines,
    write_parquet,
    write_raw,
    write_text,
)

FAST, ALL, ROWS = 2, 9, 60
FORMS_AT_ONCE = 3  # in the quick tests
TRAIN = [
    "model=dlrm",
    "model.embedding_dim=8",
    "model.dense_arch=[8]",
    "model.over_arch=[8,1]",
    "train.global_batch_size=16",
]
TRAIN += ["train.max_steps=3", "eval.split=val", "record.tensorboard=false", "runtime.num_threads=1"]
TRAIN += ["runtime.platform=cpu"]


class Form(NamedTuple):
    """A file of candidates: its name, what writes it, and whether it may be refused for what it cannot say."""

    name: str
    write: Callable[[Path], None]
    may_refuse: bool = False
    user: str | None = None  # name of the file that `write` puts the user's row into

    @property
    def is_text(self) -> bool:
        """Whether its fields are the raw file's own texts."""
        return not self.name.startswith(("typed", "user", "items"))


class Model(NamedTuple):
    """A model in `directory` that was trained on a table of `data.raw`, as `data.schema` reads it."""

    runtime: Runtime
    directory: Path

    def evaluate(self, split: str, *overrides: str) -> NDArray[np.float32]:
        """Logits of a split's rows, in order."""
        logits: list[NDArray[np.float32]] = []
        measure = Predictor.evaluate

        def kept(predictor: Predictor, *args: Any, **keywords: Any) -> Evaluation:
            evaluation = measure(predictor, *args, **keywords)
            logits.append(evaluation.logits)
            return evaluation

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Predictor, "evaluate", kept)
            command_here(self.runtime, "evaluate", f"run={self.directory}/run", f"split={split}", *overrides)
        return logits[0]

    def recommend(self, name: str, *overrides: str) -> NDArray[np.float32]:
        """Logits of a file's candidates, in the file's order."""
        out = self.directory / "ranking.json"
        arguments = [f"candidates={self.directory / name}", f"out={out}", "top_k=null", "id_column=none", *overrides]
        command_here(self.runtime, "recommend", f"run={self.directory}/run", *arguments)
        ranking = json.loads(out.read_text())["ranking"]
        logits = {int(candidate["candidate"]): candidate["logit"] for candidate in ranking}
        return np.array([logits[row] for row in sorted(logits)], np.float32)


def trained(
    runtime: Runtime, directory: Path, raw: str, schema: str, *keys: str, model_keys: Sequence[str] = ()
) -> Model:
    """Prepare the file `raw` of the directory, of which the first rows are for training, and train a few steps."""
    (directory / "schema.yaml").write_text(schema)
    paths = [f"data.raw={directory}/{raw}", f"data.schema={directory}/schema.yaml", f"data.path={directory}/data"]
    prepare(*paths, "data.split.method=fraction", *keys)
    run = [f"data.path={directory}/data", f"run.dir={directory}/run", *model_keys]
    assert train_here(runtime, *TRAIN, *run) == "completed"
    return Model(runtime, directory)


# ---- drawn tables


def forms_of(table: OwnTable, rows: list[int], draw: random.Random) -> list[Form]:
    """Files of these rows, in every form that candidates have."""
    inputs, unlabelled = table.read, [column for column in table.columns if column.use != "label"]
    vague = table.is_ambiguous
    has_dates = any(column.use == "date" for column in inputs)
    forms = []
    if not any(column.kind == "nasty list" for column in inputs):
        forms += text_forms(table, rows, draw)
        forms.append(Form("texts.jsonl", lambda path: write_lines(path, objects_of(rows, inputs, as_text=True))))
        texts = (rows, unlabelled)
        forms.append(Form("texts.parquet", lambda path: write_parquet(path, *texts, as_text=True)))
    objects = objects_of(rows, inputs)
    mixed = objects_of(rows, draw.sample(unlabelled, len(unlabelled)))
    user, items = cut_users_columns(objects)

    def write_pair(path: Path) -> None:
        write_lines(path, items)
        write_json(path.with_name("user.jsonl"), user)

    forms += [
        Form("typed.ndjson", lambda path: write_lines(path, mixed), vague),
        Form("typed.json", lambda path: write_json(path, objects), vague),
        Form("user.json", lambda path: write_json(path, {"user": user, "candidates": items}), vague),
        Form("items.jsonl", write_pair, vague, user="user.jsonl"),
        Form(
            "typed.parquet",
            lambda path: write_parquet(path, rows, draw.sample(unlabelled, len(unlabelled))),
            vague or (has_dates and not table.is_typed),
        ),
    ]
    return forms


def write_json(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document), encoding="utf-8")


def text_forms(table: OwnTable, rows: list[int], draw: random.Random) -> list[Form]:
    """The rows of the raw file as they are, and as text of other delimiters."""
    every, delimiter, header = table.columns, table.delimiter, table.header
    unlabelled = [column for column in every if column.use != "label"]

    def written(columns: list[Column], delimiter: str) -> Callable[[Path], None]:
        return lambda path: write_text(table, path, rows, columns, delimiter, header)

    other = draw.sample(table.read, len(table.read)) if header else unlabelled
    return [
        Form("raw.csv", written(every, delimiter)),
        Form("raw.csv.gz", written(every, delimiter)),
        Form("unlabelled.csv", written(unlabelled, delimiter)),
        Form("tabs.tsv", written(other, "\t"), may_refuse=not header),
        Form("tabs.txt", written(other, "\t"), may_refuse=not header),
        Form("commas.csv", written(other, ","), may_refuse=delimiter != ","),
    ]


def cut_users_columns(objects: list[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The first object, and of each object what is other than there."""
    user = objects[0]
    return user, [{key: value for key, value in item.items() if repr(value) != repr(user[key])} for item in objects]


def served(model: Model, table: OwnTable, rows: list[int], keys: dict[str, Any]) -> NDArray[np.float32]:
    """Logits of these rows, encoded by the independent encoder, by the unsharded model."""
    trained = checkpointer.trained_config(model.directory / "run", RuntimeConfig(), None)
    manifest = load_manifest(model.directory / "data")
    checkpoint = Path(files.find_checkpoint(model.directory / "run", None))
    dlrm = served_model.load(checkpoint, trained, manifest, TablePrecision.fp32, torch.device("cpu"))
    dense, ids, *lengths = inputs_of(table, model.directory / "data", rows, keys)
    one_each = torch.ones(len(manifest.num_embeddings), len(rows), dtype=torch.int32)
    flat = ids.flatten() if lengths else ids.T.flatten()
    bags = KeyedJaggedTensor(
        list(manifest.num_embeddings), flat.int(), lengths=(lengths[0] if lengths else one_each).flatten().int()
    )
    with torch.no_grad():
        logits: NDArray[np.float32] = dlrm(dense, bags).numpy()
    return logits


def inputs_of(table: OwnTable, root: Path, rows: list[int], keys: dict[str, Any]) -> list[torch.Tensor]:
    """Dense features and ids of these rows, and if they have bags their lengths, by the independent encoder."""
    dense = torch.from_numpy(dense_of(table, keys["dense_transform"])[rows])
    ids = ids_of(table, root, keys.get("max_ind_range"))
    ordered = [[bags[row] for row in rows] for bags in ids]
    if not any(column.use == "list" for column in table.read):
        return [dense, torch.tensor([[bag[0] for bag in bags] for bags in ordered]).T.contiguous()]
    lengths = torch.tensor([[len(bag) for bag in bags] for bags in ordered])
    return [dense, torch.tensor([one for bags in ordered for bag in bags for one in bag]), lengths]


def scores_of(model: Model, form: Form) -> tuple[NDArray[np.float32] | None, str]:
    """The logits of a form, or what it is refused for."""
    form.write(model.directory / form.name)
    user = () if form.user is None else (f"user={model.directory / form.user}",)
    try:
        return model.recommend(form.name, *user), ""
    except UserError as error:
        return None, str(error)


def drawn_keys(draw: random.Random) -> dict[str, Any]:
    """Keys of preparation."""
    keys: dict[str, Any] = {"dense_transform": draw.choice(["signed_log1p", "minmax"])}
    keys["encoding"] = draw.choice(["vocabulary", "hash"])
    return keys | ({"max_ind_range": draw.choice([50, 1000])} if keys["encoding"] == "hash" else {})


class DrawnModel(NamedTuple):
    """A drawn table in a form of raw file, a model of it, the rows of a split, and their logits by evaluate [rows]."""

    raw: str
    table: OwnTable
    keys: dict[str, Any]
    model: Model
    rows: list[int]
    expected: NDArray[np.float32]


def drawn_model(
    draw: random.Random,
    seed: int,
    runtime: Runtime,
    directory: Path,
    chunk_bytes: Sequence[int] = (),
    model_keys: Sequence[str] = (),
) -> DrawnModel:
    """Draw a table and its keys, train a model, and evaluate a split; chunk_bytes: values of it to draw from."""
    raw = RAW_KINDS[seed % len(RAW_KINDS)]
    table, keys = drawn_table(draw, raw, ROWS), drawn_keys(draw)
    print(f"seed {seed}: {raw}, {keys}, {table.schema()}", *((c.name, c.kind, c.texts[:5]) for c in table.columns))
    write_raw(table, directory / f"rows.{raw}")
    overrides = [f"data.{key}={value}" for key, value in keys.items()]
    overrides += [f"data.chunk_bytes={draw.choice(chunk_bytes)}"] if chunk_bytes else []
    model = trained(runtime, directory, f"rows.{raw}", table.schema(), *overrides, model_keys=model_keys)
    split = draw.choice(["train", "val"])
    expected = model.evaluate(split)
    first = 0 if split == "train" else load_manifest(directory / "data").splits["train"].rows
    return DrawnModel(raw, table, keys, model, list(range(first, first + len(expected))), expected)


@pytest.mark.medium
@pytest.mark.parametrize("seed", seeds(FAST, ALL))
def test_drawn_tables(seed: int, runtime: Runtime, tmp_path: Path) -> None:
    draw = random.Random(seed)
    _, table, keys, model, rows, expected = drawn_model(draw, seed, runtime, tmp_path, chunk_bytes=[700, 10**6])
    assert len(np.unique(expected)) > 2

    np.testing.assert_allclose(served(model, table, rows, keys), expected, rtol=0, atol=1e-6)
    forms = forms_of(table, rows, draw)
    if seed < FAST:
        forms = draw.sample(forms, FORMS_AT_ONCE)
    names = [column.name for column in table.read]
    texts, faults = [], []
    for form in forms:
        logits, refusal = scores_of(model, form)
        if logits is None:
            is_named = form.name in refusal and (any(name in refusal for name in names) or "row" in refusal)
            faults += [] if form.may_refuse and is_named else [refusal]
        elif len(logits) != len(expected) or not np.allclose(logits, expected, rtol=0, atol=1e-6):
            faults.append(f"{form.name}: other logits, first of row {int(np.abs(logits - expected).argmax())}")
        elif form.is_text:
            texts.append(logits)
    assert not faults
    for logits in texts[1:]:
        np.testing.assert_array_equal(logits, texts[0])


# ---- one by one


def rows_of_people(
    line: Callable[[str, int, float], str], numbers: Sequence[float] = (1.234, 4.95, -0.5, 12.25, 7.0)
) -> list[str]:
    """Lines of 40 rows of user, label and number, whose label depends on both."""
    draw = random.Random(41)
    pairs = [(f"u{draw.randint(1, 5)}", draw.choice(numbers)) for _ in range(40)]
    return [line(user, int(user in ("u1", "u2") or number > 7), number) for user, number in pairs]


def comma(number: float) -> str:
    return f"{number}".replace(".", ",")


def require_logits_of_train(model: Model, *names: str) -> None:
    """The first rows of each file are those of the train split, and have its logits."""
    expected = model.evaluate("train")
    assert len(np.unique(expected)) > 2
    for name in names:
        np.testing.assert_allclose(model.recommend(name)[: len(expected)], expected, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.medium
@pytest.mark.parametrize(
    "header", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["headerless", "header in training alone"]
)
def test_the_schema_s_delimiter_divides_candidates(runtime: Runtime, tmp_path: Path, header: bool) -> None:
    """At the decimal comma of `0;u1;1,234` the rows themselves are divided otherwise."""
    lines = rows_of_people(lambda user, label, number: f"{label};{user};{comma(number)}\n")
    (tmp_path / "rows.csv").write_text("".join(["label;user;price\n"] * header + lines))
    (tmp_path / "bare.csv").write_text("".join(lines))
    columns = "label: label\ndense: [price]\nsparse: [user]\n" if header else "label: 0\ndense: [2]\nsparse: [1]\n"
    schema = f'delimiter: ";"\ndecimal: ","\nheader: {str(header).lower()}\n{columns}'
    require_logits_of_train(trained(runtime, tmp_path, "rows.csv", schema, "data.dense_transform=raw"), "bare.csv")


@pytest.mark.medium
@pytest.mark.parametrize(
    "numbers",
    [(1.234, 2.718, 9.125), pytest.param((1.234, 4.95, -0.5), marks=pytest.mark.slow)],
    ids=["digits in threes", "others"],
)
@pytest.mark.parametrize(
    "form", ["jsonl", *(pytest.param(form, marks=pytest.mark.slow) for form in ("parquet", "json"))]
)
def test_numbers_with_types_are_those_numbers(
    runtime: Runtime, tmp_path: Path, form: str, numbers: tuple[float, ...]
) -> None:
    """By the text's decimal comma and thousands, 1.234 would be 1234, and 4.95 no number."""
    lines = rows_of_people(lambda user, label, number: f"{label};{user};{comma(number)}\n", numbers)
    (tmp_path / "rows.csv").write_text("".join(["label;user;price\n", *lines]))
    people = rows_of_people(lambda user, label, number: json.dumps({"user": user, "price": number}), numbers)
    objects = [json.loads(text) for text in people]
    write_objects(tmp_path / f"people.{form}", objects)
    schema = 'delimiter: ";"\ndecimal: ","\nthousands: "."\nlabel: label\ndense: [price]\nsparse: [user]\n'
    require_logits_of_train(
        trained(runtime, tmp_path, "rows.csv", schema, "data.dense_transform=raw"), f"people.{form}"
    )


@pytest.mark.medium
@pytest.mark.parametrize("labelled", [pytest.param(True, marks=pytest.mark.slow), False])
def test_an_unused_last_column_counts(runtime: Runtime, tmp_path: Path, labelled: bool) -> None:
    """Without the label, rows of as many fields as the used columns have were read one column off."""
    lines = rows_of_people(lambda user, label, number: f"{label},{number},{user},{len(user) + label}\n")
    (tmp_path / "rows.csv").write_text("".join(lines))
    (tmp_path / "new.csv").write_text("".join(line if labelled else line[2:] for line in lines))
    schema = "header: false\nlabel: 0\ndense: [1]\nsparse: [2]\n"
    require_logits_of_train(trained(runtime, tmp_path, "rows.csv", schema), "new.csv")


@pytest.mark.medium
@pytest.mark.parametrize("form", ["jsonl", pytest.param("parquet", marks=pytest.mark.slow)])
def test_lists_are_not_joined_and_divided_again(runtime: Runtime, tmp_path: Path, form: str) -> None:
    """The single value "a|b" is not two values, and "" is one."""
    bags: list[list[str]] = [["a|b"], ["a", "b"], [""], [], ["a"], ["b", ""]]
    objects = [{"label": row % 3 % 2, "tags": bags[row % len(bags)]} for row in range(42)]
    write_parquet_objects(tmp_path / "rows.parquet", objects)
    write_objects(tmp_path / f"new.{form}", [{"tags": item["tags"]} for item in objects])
    model = trained(runtime, tmp_path, "rows.parquet", "label: label\nsparse: [tags]\n")
    require_logits_of_train(model, f"new.{form}")


@pytest.mark.slow("examples")
@pytest.mark.parametrize("encoding", ["hash", "vocabulary"])
def test_a_frame_is_scored_as_the_text_that_it_was_written_to(runtime: Runtime, tmp_path: Path, encoding: str) -> None:
    """pandas writes truth values as True, and integers of a column with gaps as 3.0."""
    draw = random.Random(5)
    objects = [
        {
            "label": row % 2,
            "new": draw.random() < 0.5,
            "size": draw.choice([3.0, 4.0, 11.0, None]),
            "user": f"u{row % 4}",
        }
        for row in range(48)
    ]
    lines = [",".join("" if value is None else str(value) for value in item.values()) + "\n" for item in objects]
    (tmp_path / "rows.csv").write_text("".join(["label,new,size,user\n", *lines]))
    for name in ("new.jsonl", "new.parquet"):
        write_objects(tmp_path / name, objects)
    keys = [f"data.encoding={encoding}", *(["data.max_ind_range=1000"] if encoding == "hash" else [])]
    model = trained(runtime, tmp_path, "rows.csv", "label: label\nsparse: [new, size, user]\n", *keys)
    require_logits_of_train(model, "new.jsonl", "new.parquet")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("texts", "value"),
    [
        (["3", "3.0", "x"], 3),
        pytest.param(["3", "3.0", "x"], 3.0, marks=pytest.mark.slow),
        pytest.param(["True", "true", "x"], True, marks=pytest.mark.slow),
        pytest.param(["x", "y"], 3, marks=pytest.mark.slow),
        (["x", "y"], 0.5),
        pytest.param(["x", "y"], True, marks=pytest.mark.slow),
    ],
)
def test_typed_values_of_several_spellings_or_none_are_refused(
    runtime: Runtime, tmp_path: Path, texts: list[str], value: Any
) -> None:
    """Which of a column's texts is meant cannot be known."""
    lines = [f"{row % 2},{texts[row % len(texts)]}\n" for row in range(40)]
    (tmp_path / "rows.csv").write_text("".join(["label,kind\n", *lines]))
    (tmp_path / "new.jsonl").write_text('{"kind": "x"}\n' + json.dumps({"kind": value}) + "\n")
    keys = ["data.encoding=hash", "data.max_ind_range=1000"]
    model = trained(runtime, tmp_path, "rows.csv", "label: label\nsparse: [kind]\n", *keys)
    refused(r"new\.jsonl: row 2, column kind: ", model.recommend, "new.jsonl")


@pytest.mark.medium
def test_text_is_its_own_category_in_every_form(runtime: Runtime, tmp_path: Path) -> None:
    """What looks like a number or a truth value, too."""
    texts = ["3", "3.0", "03", "True", "true", "1", "null", ""]
    objects = [{"label": row % 3 % 2, "kind": texts[row % len(texts)]} for row in range(56)]
    lines = [f"{item['label']},{item['kind']}\n" for item in objects]
    (tmp_path / "rows.csv").write_text("".join(["label,kind\n", *lines]))
    model = trained(runtime, tmp_path, "rows.csv", "label: label\nsparse: [kind]\n")
    for form in ("jsonl", "parquet"):
        write_objects(tmp_path / f"new.{form}", objects)
        require_logits_of_train(model, f"new.{form}")


@pytest.mark.medium
@pytest.mark.parametrize("name", ["rows.jsonl", pytest.param("rows.ndjson", marks=pytest.mark.slow)])
def test_json_lines_are_raw_data(runtime: Runtime, tmp_path: Path, name: str) -> None:
    """And score as themselves, as Parquet and as text."""
    draw = random.Random(8)
    objects = [
        {
            "label": row % 2,
            "user": f"u{draw.randint(1, 5)}",
            "price": draw.choice([None, 4.95, 3]),
            "tags": ["a|b", ""][: row % 3],
        }
        for row in range(42)
    ]
    write_objects(tmp_path / name, objects)
    model = trained(runtime, tmp_path, name, "label: label\ndense: [price]\nsparse: [user, tags]\n")
    require_logits_of_train(model, name)
    write_objects(tmp_path / "new.json", objects)
    require_logits_of_train(model, "new.json")


@pytest.mark.slow("examples")
def test_missing_marks_are_of_whole_fields(runtime: Runtime, tmp_path: Path) -> None:
    """A field of a mark alone holds no category; a mark beside others is one of them."""
    fields = ["NA", "a|NA", "a", "", "b"]
    lines = [f"{row % 3 % 2},{fields[row % len(fields)]}\n" for row in range(45)]
    (tmp_path / "rows.csv").write_text("".join(["label,tags\n", *lines]))
    schema = "label: label\nmissing: [NA]\nsparse: [{column: tags, separator: '|'}]\n"
    model = trained(runtime, tmp_path, "rows.csv", schema)
    manifest = load_manifest(tmp_path / "data")
    first = open_shard(tmp_path / "data", "train", manifest.splits["train"].shards[0], manifest)
    assert np.diff(first.bags[0].offsets)[:5].tolist() == [0, 2, 1, 0, 1]
    assert manifest.num_embeddings == {"tags": 1 + len(("a", "NA", "b"))}
    objects = [{"tags": fields[row % len(fields)]} for row in range(45)]
    (tmp_path / "new.csv").write_text("tags\n" + "".join(f'"{item["tags"]}"\n' for item in objects))
    for name in ("new.jsonl", "new.parquet"):
        write_objects(tmp_path / name, objects)
    require_logits_of_train(model, "new.csv", "new.jsonl", "new.parquet")


def write_objects(path: Path, objects: list[dict[str, Any]]) -> None:
    """Objects in the form of file that the name says."""
    if path.suffix == ".parquet":
        write_parquet_objects(path, objects)
    elif path.suffix == ".json":
        write_json(path, objects)
    else:
        write_lines(path, objects)


def write_parquet_objects(path: Path, objects: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(objects), path)
