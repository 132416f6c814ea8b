"""The same row is the same row: in evaluation, as a candidate in any form of file, and to an exported program.

What a form cannot say is refused by name; nothing is scored as another row.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from app.checkpoint import files
from app.config import RuntimeConfig
from app.config.commands import TablePrecision
from app.runtime.platform import Runtime
from app.scoring import export_program, served_model
from app.sharding import from_config
from app.training import resume
from app.training.session import Evaluation, Predictor
from common.errors import UserError
from data_prep.dataset.format import load_manifest
from data_prep.pipeline import preprocess
from tests.app.in_process import command_here, train_here
from tests.data_prep.conftest import config
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

FAST, ALL, ROWS = 5, 100, 60
FORMS_AT_ONCE = 4  # in the quick tests
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FAST)) for seed in range(ALL)]
TRAIN = [
    "model.embedding_dim=8",
    "model.dense_arch=[8]",
    "model.over_arch=[8,1]",
    "train.global_batch_size=16",
    "train.max_steps=3",
    "eval.split=val",
    "record.tensorboard=false",
    "runtime.num_threads=1",
    "runtime.platform=cpu",
]
readers = pytest.mark.xfail(strict=True, reason="the readers' half")


class Form(NamedTuple):
    """A file of candidates: its name, what writes it, and whether it may be refused for what it cannot say."""

    name: str
    write: Callable[[Path], None]
    may_refuse: bool = False
    user: str | None = None  # name of the file that `write` puts the user's row into


class Model(NamedTuple):
    """A model in `directory` that was trained on a table of `data.raw`, as `data.schema` reads it."""

    here: Runtime
    directory: Path

    def evaluate(self, split: str) -> NDArray[np.float32]:
        """Logits of a split's rows, in order."""
        logits: list[NDArray[np.float32]] = []
        measure = Predictor.evaluate

        def kept(predictor: Predictor, *args: Any) -> Evaluation:
            evaluation = measure(predictor, *args)
            logits.append(evaluation.logits)
            return evaluation

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Predictor, "evaluate", kept)
            command_here(self.here, "evaluate", f"run={self.directory}/run", f"split={split}")
        return logits[0]

    def recommend(self, name: str, *overrides: str) -> NDArray[np.float32]:
        """Logits of a file's candidates, in the file's order."""
        out = self.directory / "ranking.json"
        given = [f"candidates={self.directory / name}", f"out={out}", "top_k=null", "id_column=none", *overrides]
        command_here(self.here, "recommend", f"run={self.directory}/run", *given)
        ranking = json.loads(out.read_text())["ranking"]
        logits = {int(candidate["candidate"]): candidate["logit"] for candidate in ranking}
        return np.array([logits[row] for row in sorted(logits)], np.float32)

    def program(self, exported: bool) -> Any:
        """The program that app.export makes: as read from the file, or before it is traced."""
        if exported:
            out = self.directory / "model.pt2"
            command_here(self.here, "export", f"run={self.directory}/run", f"out={out}")
            return torch.export.load(out).module()
        trained = resume.trained_config(self.directory / "run", RuntimeConfig(), None)
        manifest = load_manifest(self.directory / "data")
        checkpoint = Path(files.find_checkpoint(self.directory / "run", None))
        model = served_model.load(checkpoint, trained, manifest, TablePrecision.fp32, torch.device("cpu"))
        multi_hot = from_config.multi_hot_features(trained, manifest)
        return export_program.program_of(model, manifest.num_embeddings, multi_hot)


def trained(here: Runtime, directory: Path, raw: str, schema: str, *keys: str) -> Model:
    """Prepare the file `raw` of the directory, of which the first rows are for training, and train a few steps."""
    (directory / "schema.yaml").write_text(schema)
    paths = [f"data.raw={directory}/{raw}", f"data.schema={directory}/schema.yaml", f"data.path={directory}/data"]
    preprocess(config("data=custom", *paths, "data.split.method=fraction", *keys))
    assert train_here(here, *TRAIN, f"data.path={directory}/data", f"run.dir={directory}/run") == "completed"
    return Model(here, directory)


# ---- drawn tables


def forms_of(table: OwnTable, rows: list[int], draw: random.Random) -> list[Form]:
    """Files of these rows, in every form that candidates have."""
    inputs, others = table.read, [column for column in table.columns if column.use != "label"]
    vague = table.is_ambiguous
    has_dates = any(column.use == "date" for column in inputs)
    forms = []
    if not any(column.kind == "nasty list" for column in inputs):
        forms += text_forms(table, rows, draw)
        forms.append(Form("texts.jsonl", lambda path: write_lines(path, objects_of(rows, inputs, as_text=True))))
        texts = (rows, others)
        forms.append(Form("texts.parquet", lambda path: write_parquet(path, *texts, as_text=True)))
    objects = objects_of(rows, inputs)
    mixed = objects_of(rows, draw.sample(others, len(others)))
    user, items = cut_users_columns(objects)

    def write_pair(path: Path) -> None:
        write_lines(path, items)
        path.with_name("user.jsonl").write_text(json.dumps(user))

    forms += [
        Form("typed.ndjson", lambda path: write_lines(path, mixed), vague),
        Form("typed.json", lambda path: path.write_text(json.dumps(objects)), vague),
        Form("user.json", lambda path: path.write_text(json.dumps({"user": user, "candidates": items})), vague),
        Form("items.jsonl", write_pair, vague, user="user.jsonl"),
        Form(
            "typed.parquet",
            lambda path: write_parquet(path, rows, draw.sample(others, len(others))),
            vague or (has_dates and not table.is_typed),
        ),
    ]
    return forms


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


def inputs_of(table: OwnTable, root: Path, rows: list[int], keys: dict[str, Any]) -> list[torch.Tensor]:
    """What an exported program is given for these rows, by the independent encoder."""
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


# @pytest.mark.xfail(strict=False, reason="the readers' half")
@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_tables(seed: int, here: Runtime, tmp_path: Path) -> None:
    draw = random.Random(seed)
    raw = RAW_KINDS[seed % len(RAW_KINDS)]
    table, keys = drawn_table(draw, raw, ROWS), drawn_keys(draw)
    print(f"seed {seed}: {raw}, {keys}, {table.schema()}", *((c.name, c.kind, c.texts[:5]) for c in table.columns))
    write_raw(table, tmp_path / f"rows.{raw}")
    given = [f"data.{key}={value}" for key, value in keys.items()]
    chunk = f"data.chunk_bytes={draw.choice([700, 10**6])}"
    model = trained(here, tmp_path, f"rows.{raw}", table.schema(), *given, chunk)
    split = draw.choice(["train", "val"])
    expected = model.evaluate(split)
    first = 0 if split == "train" else load_manifest(tmp_path / "data").splits["train"].rows
    rows = list(range(first, first + len(expected)))
    assert len(np.unique(expected)) > 2

    program = model.program(exported=seed >= FAST)
    logits = program(*inputs_of(table, tmp_path / "data", rows, keys)).detach().numpy()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-6)
    forms = forms_of(table, rows, draw)
    if seed < FAST:
        forms = draw.sample(forms, FORMS_AT_ONCE)
    names = [column.name for column in table.read]
    scored = []
    for form in forms:
        logits, fault = scores_of(model, form)
        if logits is None:
            assert form.may_refuse, fault
            assert form.name in fault
            assert any(name in fault for name in names) or "row" in fault
            continue
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-6, err_msg=form.name)
        scored.append(logits)
    for logits in scored[1:]:
        np.testing.assert_array_equal(logits, scored[0])
