"""The same row is the same row: in evaluation, as a candidate in any form of file, and to the model as it is served.

What a form cannot say is refused by name; nothing is scored as another row.
"""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from app.runtime.platform import Runtime
from app.training.predictor import Evaluation, Predictor
from common.errors import UserError
from data_prep.dataset.format import load_manifest
from tests.app.in_process import command_here, train_here
from tests.data_prep.conftest import prepare, seeds
from tests.oracles import own_tables

FAST, ALL, ROWS = 4, 12, 60
TRAIN = ["model=dlrm", "model.embedding_dim=8", "model.dense_arch=[8]", "model.over_arch=[8,1]"]
TRAIN += ["train.global_batch_size=16", "train.max_steps=3", "eval.split=val", "record.tensorboard=false"]
TRAIN += ["runtime.num_threads=1", "runtime.platform=cpu"]


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


def forms_of(table: own_tables.OwnTable, rows: list[int], draw: random.Random) -> list[Form]:
    """Files of these rows, in every form that candidates have."""
    inputs, unlabelled = table.read, [column for column in table.columns if column.use != "label"]
    vague = table.is_ambiguous
    has_dates = any(column.use == "date" for column in inputs)
    forms = []
    if not any(column.kind == "nasty list" for column in inputs):
        forms += text_forms(table, rows, draw)
        forms.append(
            Form(
                "texts.jsonl",
                lambda path: own_tables.write_lines(path, own_tables.objects_of(rows, inputs, as_text=True)),
            )
        )
        texts = (rows, unlabelled)
        forms.append(Form("texts.parquet", lambda path: own_tables.write_parquet(path, *texts, as_text=True)))
    objects = own_tables.objects_of(rows, inputs)
    mixed = own_tables.objects_of(rows, draw.sample(unlabelled, len(unlabelled)))
    user = objects[0]
    items = [{key: value for key, value in item.items() if repr(value) != repr(user[key])} for item in objects]

    def write_pair(path: Path) -> None:
        own_tables.write_lines(path, items)
        write_json(path.with_name("user.jsonl"), user)

    forms += [
        Form("typed.ndjson", lambda path: own_tables.write_lines(path, mixed), vague),
        Form("typed.json", lambda path: write_json(path, objects), vague),
        Form("user.json", lambda path: write_json(path, {"user": user, "candidates": items}), vague),
        Form("items.jsonl", write_pair, vague, user="user.jsonl"),
        Form(
            "typed.parquet",
            lambda path: own_tables.write_parquet(path, rows, draw.sample(unlabelled, len(unlabelled))),
            vague or (has_dates and not table.is_typed),
        ),
    ]
    return forms


def write_json(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document), encoding="utf-8")


def text_forms(table: own_tables.OwnTable, rows: list[int], draw: random.Random) -> list[Form]:
    """The rows of the raw file as they are, and as text of other delimiters."""
    every, delimiter, header = table.columns, table.delimiter, table.header
    unlabelled = [column for column in every if column.use != "label"]

    def written(columns: list[own_tables.Column], delimiter: str) -> Callable[[Path], None]:
        return lambda path: own_tables.write_text(table, path, rows, columns, delimiter, header)

    other = draw.sample(table.read, len(table.read)) if header else unlabelled
    return [
        Form("raw.csv", written(every, delimiter)),
        Form("raw.csv.gz", written(every, delimiter)),
        Form("unlabelled.csv", written(unlabelled, delimiter)),
        Form("tabs.tsv", written(other, "\t"), may_refuse=not header),
        Form("tabs.txt", written(other, "\t"), may_refuse=not header),
        Form("commas.csv", written(other, ","), may_refuse=delimiter != ","),
    ]


def scores_of(model: Model, form: Form) -> tuple[NDArray[np.float32] | None, str]:
    """The logits of a form, or what it is refused for."""
    form.write(model.directory / form.name)
    user = () if form.user is None else (f"user={model.directory / form.user}",)
    try:
        return model.recommend(form.name, *user), ""
    except UserError as error:
        return None, str(error)


class DrawnModel(NamedTuple):
    """A drawn table in a form of raw file, a model of it, the rows of a split, and their logits by evaluate [rows]."""

    raw: str
    table: own_tables.OwnTable
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
    raw = own_tables.RAW_KINDS[seed % len(own_tables.RAW_KINDS)]
    table = own_tables.drawn_table(draw, raw, ROWS)
    keys: dict[str, Any] = {"dense_transform": draw.choice(["signed_log1p", "minmax"])}
    keys["encoding"] = draw.choice(["vocabulary", "hash"])
    keys |= {"max_ind_range": draw.choice([50, 1000])} if keys["encoding"] == "hash" else {}
    print(f"seed {seed}: {raw}, {keys}, {table.schema()}", *((c.name, c.kind, c.texts[:5]) for c in table.columns))
    own_tables.write_raw(table, directory / f"rows.{raw}")
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
    _, table, _, model, rows, expected = drawn_model(draw, seed, runtime, tmp_path, chunk_bytes=[700, 10**6])
    assert len(np.unique(expected)) > 2

    names = [column.name for column in table.read]
    texts, faults = [], []
    for form in forms_of(table, rows, draw):
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
