"""Exported directories: score.py, on raw rows, gives what evaluate and recommend give, without our code."""

import gzip
import hashlib
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from onnxruntime import InferenceSession

import clickwork
from app.data.split import SplitReader
from app.runtime.platform import Runtime
from common.errors import UserError
from data_prep.dataset.format import load_manifest
from extensions.export import command
from extensions.export import directory as directory_module
from tests.app.conftest import Refusal, composed
from tests.app.in_process import command_here, train_here
from tests.app.scoring.test_same_row import TRAIN, Model, drawn_model, trained
from tests.app.scoring.test_sampling import CORRECTED
from tests.app.training.test_number_labels import MODEL, make_ratings
from tests.data_prep.conftest import prepare, seeds
from tests.extensions.export.serving import score_files
from tests.oracles.own_tables import objects_of, write_lines, write_raw

INTERACTIONS: list[list[str]] = [
    [],
    ["model.interaction=dcn", "model.batch_norm=true", "model.over_arch=[4,1]"],
    ["model.interaction=projection", "model.tables.pooling=mean"],
    ["model.interaction=scalar_pairs"],
    ["model.interaction=cat"],
    ["model.numeric=vectors", "model.dense_arch=[]"],
    ["model.tables.storage=fp16"],
]


@pytest.mark.medium
@pytest.mark.parametrize("seed", seeds(2, 9))
def test_drawn_tables(seed: int, runtime: Runtime, tmp_path: Path) -> None:
    """Rows of drawn tables, in every form of file, through drawn models."""
    model_keys = INTERACTIONS[seed % len(INTERACTIONS)]
    raw, table, _, _, rows, expected = drawn_model(random.Random(seed), seed, runtime, tmp_path, model_keys=model_keys)
    command_here(runtime, "export", f"run={tmp_path}/run", f"out={tmp_path}/served")
    files = [tmp_path / f"part.{raw}", tmp_path / "typed.jsonl"]
    write_raw(table, files[0], rows)
    write_lines(files[1], objects_of(rows, table.read))
    for result in score_files(tmp_path / "served", *files):
        if "error" in result:
            assert table.is_ambiguous
            assert any(column.name in result["error"] for column in table.read)
        else:
            np.testing.assert_allclose(result["logits"], expected, rtol=0, atol=1e-5)


# ---- Criteo's rows


def write_criteo(path: Path, rows: int = 400) -> None:
    """Rows with negative and large integers, empty fields, and categories of a few values."""
    draw = random.Random(3)
    lines = []
    for row in range(rows):
        integers = [draw.choice(["", "-3", "0", "7", "123456", str(draw.randint(0, 2000))]) for _ in range(13)]
        categories = [draw.choice(["", f"{draw.randint(0, 12):08x}", f"{draw.randint(0, 3):x}"]) for _ in range(26)]
        lines.append("\t".join([str(int(draw.random() < 0.3) if row > 1 else row), *integers, *categories]))
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


@pytest.fixture(scope="module")
def criteo(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model of half of the negatives and of weighted labels, in int8 and corrected as `served`."""
    weights = ["loss=weighted_bce", "loss.class_weights=[1,5]"]
    directory = tmp_path_factory.mktemp("criteo")
    return criteo_model(runtime, directory, "data.sampling.negative_drop_rate=0.5", run_keys=weights)


def criteo_model(runtime: Runtime, directory: Path, *keys: str, run_keys: Sequence[str] = ()) -> Model:
    """A model trained on Criteo's rows, and `new.tsv`, unlabelled rows."""
    write_criteo(directory / "rows.tsv")
    lines = (directory / "rows.tsv").read_text().splitlines()[:50]
    (directory / "new.tsv").write_text("".join(line.partition("\t")[2] + "\n" for line in lines))
    prepare(f"data.raw={directory}/rows.tsv", f"data.path={directory}/data", *keys)
    run = [*TRAIN[:5], "train.max_steps=3", "record.tensorboard=false", "runtime.platform=cpu", "eval.split=test"]
    run += [f"data.path={directory}/data", f"run.dir={directory}/run", *run_keys]
    assert train_here(runtime, *run) == "completed"
    return Model(runtime, directory)


BAGS = "data.multi_hot.sizes=[3,1,2,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,4]"
# Keys of preparation and of the run.
ENCODINGS: list[tuple[list[str], list[str]]] = [
    (["data.encoding=hash", "data.max_ind_range=7"], []),
    (["data.encoding=torchrec", "data.split.method=fraction", "data.max_ind_range=5"], []),
    (["data.encoding=torchrec_fixed", "data.split.method=fraction"], []),
    (["data.encoding=dlrm_kaggle"], []),
    (["data.encoding=amd_blog", "data.max_categories=14"], []),
    (["data.dense_transform=signed_log1p"], []),
    (["data.dense_transform=minmax"], []),
    ([BAGS], []),
    ([], [BAGS]),  # the run expands ids to bags while it reads
]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("keys", "run_keys"), [pytest.param(*keys, marks=[pytest.mark.slow] * (n > 1)) for n, keys in enumerate(ENCODINGS)]
)
def test_every_encoding_of_criteo(keys: list[str], run_keys: list[str], runtime: Runtime, tmp_path: Path) -> None:
    model = criteo_model(runtime, tmp_path, *keys, run_keys=run_keys)
    command_here(runtime, "export", f"run={tmp_path}/run", f"out={tmp_path}/served")
    [result] = score_files(tmp_path / "served", tmp_path / "new.tsv")
    np.testing.assert_allclose(result["logits"], model.recommend("new.tsv"), rtol=0, atol=1e-5)


@pytest.mark.medium
def test_probabilities_are_corrected_as_recommend_s(criteo: Model, tmp_path: Path) -> None:
    root = criteo.directory
    criteo.recommend("new.tsv", CORRECTED)
    ranking = json.loads((root / "ranking.json").read_text())["ranking"]
    expected = {int(each["candidate"]): each["probability"] for each in ranking}
    command_here(criteo.runtime, "export", f"run={root}/run", f"out={tmp_path}/served", CORRECTED)
    text = (root / "new.tsv").read_text()
    (tmp_path / "commas.csv.gz").write_bytes(gzip.compress(text.replace("\t", ",").encode()))
    header = ",".join(load_manifest(root / "data").schema["dense"] + list(load_manifest(root / "data").num_embeddings))
    (tmp_path / "names.txt").write_text(f"{header}\n{text}".replace(",", "\t"))
    for result in score_files(tmp_path / "served", root / "new.tsv", *sorted(tmp_path.glob("*.*"))):
        np.testing.assert_allclose(result["scores"], [expected[row] for row in sorted(expected)], rtol=0, atol=1e-6)


@pytest.mark.medium
@pytest.mark.parametrize("tables", ["int8", "fp16"])
def test_tables_of_fewer_bits_are_those_of_evaluate(criteo: Model, tables: str, tmp_path: Path) -> None:
    root = criteo.directory
    expected = criteo.evaluate("test", f"tables={tables}")
    command_here(criteo.runtime, "export", f"run={root}/run", f"out={tmp_path}/served", f"tables={tables}")
    manifest = load_manifest(root / "data")
    run_config = composed(f"data.path={root}/data")
    rows = manifest.splits["test"].rows
    batch = next(SplitReader(root / "data", manifest, "test", run_config.data, 0, 1).eval_batches(rows))
    ids = batch.sparse_features.values().view(26, rows).T.long().numpy()
    session = InferenceSession(tmp_path / "served/model.onnx")
    [actual] = session.run(["logits"], {"dense_features": batch.dense_features.numpy(), "ids": ids})
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


# ---- other data


@pytest.mark.medium
def test_predicted_numbers(runtime: Runtime, tmp_path: Path) -> None:
    make_ratings(tmp_path)
    keys = [*MODEL, "model.over_arch=[16,1]", "train.global_batch_size=100", "eval.split=val", "train.max_steps=4"]
    run = [f"data.path={tmp_path}/data", f"run.dir={tmp_path}/run"]
    assert train_here(runtime, *keys, *run) == "completed"
    command_here(runtime, "export", f"run={tmp_path}/run", f"out={tmp_path}/served")
    (tmp_path / "new.csv").write_text("\n".join((tmp_path / "ratings.csv").read_text().splitlines()[:30]))
    program = [sys.executable, str(tmp_path / "served/score.py"), str(tmp_path / "new.csv")]
    lines = subprocess.run(program, capture_output=True, text=True, check=True).stdout.splitlines()
    arguments = [f"candidates={tmp_path}/new.csv", f"out={tmp_path}/r.json", "top_k=null", "id_column=none"]
    command_here(runtime, "recommend", f"run={tmp_path}/run", *arguments)
    ranking = {int(e["candidate"]): e["prediction"] for e in json.loads((tmp_path / "r.json").read_text())["ranking"]}
    assert lines[0] == "prediction"
    np.testing.assert_allclose([float(line) for line in lines[1:]], [ranking[n] for n in sorted(ranking)], atol=1e-5)


@pytest.mark.medium
def test_a_table_s_dialect_transforms_and_vectors(runtime: Runtime, tmp_path: Path) -> None:
    draw = random.Random(5)
    lines = ["label,größe,alter,e,wort"]
    for row in range(60):
        vector = "|".join(str(round(draw.gauss(0, 1), 3)) for _ in range(3))
        numbers = f"{draw.lognormvariate(0, 2):.3f},{draw.choice(['', '-3', '7'])},{vector}"
        word = draw.choice(["é\\,1", '"ü', "\\N", 'ß\\"'])
        lines.append(f"{row % 2},{numbers},{word}")
    (tmp_path / "rows.csv").write_bytes("\n".join([*lines, ""]).encode("cp1252"))
    schema = (
        'label: label\nquoting: none\nescape: "\\\\"\ncharset: windows-1252\nmissing: ["\\\\N"]\n'
        "dense:\n  - {column: größe, transform: quantile}\n  - {column: alter, transform: standard}\n"
        '  - {column: e, vector: 3, separator: "|", transform: minmax}\nsparse: [wort]\n'
    )
    model = trained(runtime, tmp_path, "rows.csv", schema)
    command_here(runtime, "export", f"run={tmp_path}/run", f"out={tmp_path}/served")
    typed: list[dict[str, Any]] = [
        {"größe": 5.5, "alter": None, "e": [0.5, -1, 2], "wort": "é,1"},
        {"größe": 0, "alter": 7, "e": None, "wort": '"ü'},
    ]
    write_lines(tmp_path / "typed.jsonl", typed)
    (tmp_path / "marked.csv").write_text("\ufeffgröße,alter,e,wort\n", encoding="utf-8")
    [marked] = score_files(tmp_path / "served", tmp_path / "marked.csv")
    assert "row 1: begins with the byte-order mark of UTF-8" in marked["error"]
    files = ["rows.csv", "typed.jsonl"]
    for name, result in zip(files, score_files(tmp_path / "served", *(tmp_path / name for name in files)), strict=True):
        np.testing.assert_allclose(result["logits"], model.recommend(name), rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def generated(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model of generated ids, exported as `served`; its columns are int_0, int_1, cat_0 (bags), cat_1."""
    root = tmp_path_factory.mktemp("generated")
    keys = ["data.source=random", "data.random.rows=600", "data.random.tables=[9,5]", "data.random.num_dense=2"]
    keys += ["data.random.eval_rows=40", "data.random.bag_sizes=[3,1]"]
    run = [*TRAIN[:5], "train.max_steps=2", "record.tensorboard=false", "runtime.platform=cpu", *keys]
    paths = [f"data.path={root}/data", f"run.dir={root}/run", "eval.split=val"]
    assert train_here(runtime, *run, *paths) == "completed"
    command_here(runtime, "export", f"run={root}/run", f"out={root}/served")
    return Model(runtime, root)


def rows_of_ids(model: Model) -> dict[str, list[Any]]:
    """Rows of the val split, as its batch holds them."""
    root = model.directory / "data"
    manifest = load_manifest(root)
    data = composed(f"data.path={root}").data
    batch = next(SplitReader(root, manifest, "val", data, 0, 1).eval_batches(40))
    bags = {name: batch.sparse_features[name].to_dense() for name in manifest.num_embeddings}
    dense = {name: batch.dense_features[:, place].tolist() for place, name in enumerate(manifest.schema["dense"])}
    return dense | {name: [ids.tolist() for ids in each] for name, each in bags.items()}


@pytest.mark.medium
def test_rows_of_generated_ids(generated: Model, tmp_path: Path) -> None:
    pq.write_table(pa.table(rows_of_ids(generated)), tmp_path / "rows.parquet")
    [result] = score_files(generated.directory / "served", tmp_path / "rows.parquet")
    np.testing.assert_allclose(result["logits"], generated.evaluate("val"), rtol=0, atol=1e-5)


IN_A_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np, pyarrow as pa
from score import Scorer, score

scorer = Scorer(threads=1)
one = {"int_0": [0.5, 1.0], "int_1": [2, None], "cat_0": [[1, 2, 3], [8]], "cat_1": [4, 0], "other": ["x", "y"]}
many = {name: values * 5000 for name, values in one.items()}
many["cat_0"][7] = [5] * 3000  # all others would be padded to its length
scores = score(one)
assert scores.shape == (2,) and scores.dtype == np.float32
assert np.abs(score(pa.table(one)) - scores).max() == 0
assert np.abs(score({**one, "int_0": np.array([0.5, 1.0])}) - scores).max() == 0
rows = scorer.score(many)
assert rows.shape == (10000,) and np.abs(rows[8:].reshape(-1, 2) - scores).max() < 1e-6 and rows[7] != rows[9]
assert len(score({name: [] for name in one})) == len(score([])) == len(score(pa.table({}))) == 0
try:
    score({**one, "cat_1": [1]})
except Exception as error:
    print(error)
"""


@pytest.mark.medium
def test_rows_in_memory(generated: Model) -> None:
    program = [sys.executable, "-c", IN_A_PROGRAM, str(generated.directory / "served")]
    process = subprocess.run(program, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout == "rows: columns of different lengths; give each row every column\n"


FORMS_IN_A_PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np, pandas as pd, polars as pl, pyarrow as pa
from score import Scorer, UserError

nan, scorer = float("nan"), Scorer(threads=1)
rows = json.loads(sys.argv[2])
columns = {name: [row[name] for row in rows] for name in rows[0]}
with_nan = {name: [nan if value is None else value for value in values] for name, values in columns.items()}
frame, table = pd.DataFrame(rows), pa.Table.from_pylist(rows)
arrow_nan = table.set_column(0, "size", pa.array(with_nan["size"], from_pandas=False))
assert arrow_nan["size"].null_count == 0
assert frame["size"].isna().any() and frame["town"].isna().any()
forms = {
    "dicts": rows,
    "dicts with NaN": [dict(zip(with_nan, values)) for values in zip(*with_nan.values())],
    "dicts that lack columns": [{name: value for name, value in row.items() if value is not None} for row in rows],
    "records of pandas": frame.to_dict("records"),
    "records with NA": frame.astype(object).where(frame.notna(), pd.NA).to_dict("records"),
    "lists": columns,
    "lists with NaN": with_nan,
    "arrays": {name: frame[name].to_numpy() for name in frame},
    "float32 arrays": {**columns, "size": frame["size"].to_numpy(np.float32)},
    "float16 arrays": {**columns, "size": frame["size"].to_numpy(np.float16)},
    "swapped arrays": {**columns, "size": frame["size"].to_numpy().astype(">f8")},
    "objects": {name: frame[name].to_numpy(object) for name in frame},
    "times with NaT": {**columns, "when": pd.to_datetime(frame["when"]).to_numpy()},
    "pandas series": {name: frame[name] for name in frame},
    "polars series": {name: pl.DataFrame(rows)[name] for name in frame},
    "arrow arrays": {name: table[name].combine_chunks() for name in frame},
    "chunks": {name: pa.chunked_array([table[name].chunk(0), table[name].chunk(0)[:0]]) for name in frame},
    "pandas": frame,
    "pandas of nullable types": frame.convert_dtypes(),
    "pandas categories": frame.astype({"town": "category"}),
    "pandas times": frame.assign(when=pd.to_datetime(frame["when"])),
    "polars": pl.DataFrame(rows),
    "polars with NaN": pl.DataFrame(rows).with_columns(pl.Series("size", with_nan["size"])),
    "polars categories": pl.DataFrame(rows).with_columns(pl.col("town").cast(pl.Categorical)),
    "arrow": table,
    "arrow with NaN": arrow_nan,
    "chunks of a table": pa.concat_tables([table[:1], table[1:]]),
    "batch": table.to_batches()[0],
    "reader": table.to_reader(),
}
refused = {
    "none": None,
    "name": "new.csv",
    "number": 7,
    "scalars": rows[0],
    "list": [rows[0], 7],
    "twice": table.append_column("town", table["town"]),
    "mixed": frame.astype(object).assign(town=[1, "a", 2.5]),
    "member": [{**rows[0], "tags": ["a", nan]}],
    "set": [{**rows[0], "tags": {"a"}}],
    "sparse": frame.assign(size=pd.arrays.SparseArray([1, 2, 3])),
    "period": frame.assign(when=pd.PeriodIndex(["2025-05-08"] * 3, freq="D")),
}
result = {name: scorer.score(form).tolist() for name, form in forms.items()}
errors = {}
for name, form in refused.items():
    try:
        errors[name] = str(scorer.score(form))
    except UserError as error:
        errors[name] = str(error)
print(json.dumps([result, errors]))
"""
FORM_SCHEMA = """label: label
dense: [size]
sparse: [town, {column: when, part: weekday}, {column: tags, separator: "|"}]
"""
FORM_ROWS: list[dict[str, Any]] = [
    {"size": 1.5, "town": "Bern", "when": "2025-05-08 06:45:00", "tags": ["a"]},
    {"size": None, "town": None, "when": None, "tags": None},
    {"size": 3.0, "town": "Genf", "when": "2025-05-09 07:00:00", "tags": ["b", "a"]},
]


@pytest.mark.medium
def test_every_form_of_rows_in_memory_is_scored_as_predict_scores_it(runtime: Runtime, tmp_path: Path) -> None:
    lines = ["label,size,town,when,tags"]
    for row in range(60):
        size, town, tags = ("", "1.5", "3")[row % 3], ("Bern", "", "Genf")[row // 2 % 3], ("a", "a|b", "")[row % 3]
        when = f"2025-05-{row % 28 + 1:02d} 06:45:00" if row % 5 else ""
        lines.append(f"{row // 3 % 2},{size},{town},{when},{tags}")
    (tmp_path / "rows.csv").write_text("\n".join([*lines, ""]))
    trained(runtime, tmp_path, "rows.csv", FORM_SCHEMA)
    command_here(runtime, "export", f"run={tmp_path}/run", f"out={tmp_path}/served")
    expected = clickwork.load(tmp_path / "run", platform="cpu").predict(FORM_ROWS)
    program = [sys.executable, "-c", FORMS_IN_A_PROGRAM, str(tmp_path / "served"), json.dumps(FORM_ROWS)]
    process = subprocess.run(program, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    scores, errors = json.loads(process.stdout)
    assert len(set(expected.tolist())) == 3
    for form, values in scores.items():
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-6, err_msg=form)
    remedy = "give lists or arrays by column, a list of dicts, or a table of pandas, polars or pyarrow"
    for form in ("mixed", "sparse"):
        assert errors.pop(form).startswith("rows: not readable through Arrow's interface (")
    assert errors.pop("set").startswith("rows: row 1, column tags: {'a'} is not a category")
    assert errors.pop("period").startswith("rows: row 1, column when: 'extension<pandas.period<")
    assert errors.pop("member").startswith("rows: row 1, column tags: nan ")
    assert errors == {
        "none": f"rows: NoneType is not a table; {remedy}",
        "name": f"rows: str is not a table; {remedy}",
        "number": f"rows: int is not a table; {remedy}",
        "scalars": "rows, column size: float, not a list or an array; give [1.5] for one value",
        "list": f"rows: list is not a table; {remedy}",
        "twice": "rows: a column is named twice, town; rename one",
    }


REFUSED_ROWS = [
    ('{"int_0": NaN, "int_1": 2, "cat_0": [8], "cat_1": 1}', "row 1: not JSON (NaN, which JSON does not have)"),
    ('{"int_0": 1, "int_1": 2, "cat_0": [8, 9], "cat_1": 1}', "row 1, column cat_0: 9 is no id from 0 to 8"),
    ('{"int_0": 1, "int_1": 2, "cat_0": [-1], "cat_1": 1}', "row 1, column cat_0: -1 is no id from 0 to 8"),
    ('{"int_0": 1, "int_1": 2, "cat_0": [1], "cat_1": 5}', "row 1, column cat_1: 5 is no id from 0 to 4"),
    ('{"int_0": 1, "int_1": 2, "cat_0": [1], "cat_1": true}', "row 1, column cat_1: True is no id"),
    ('{"int_0": 1, "int_1": 2, "cat_0": [1], "cat_1": [1, 2]}', "column cat_1: 2 ids in 1 rows; give one each"),
    ('{"int_0": "x", "int_1": 2, "cat_0": [1], "cat_1": 1}', "row 1, column int_0: 'x' is not a number"),
    ('{"int_0": 1, "int_1": 2, "cat_0": [1]}', "no column cat_1; the model reads int_0, int_1, cat_0, cat_1"),
    ('{"int_0": 1,', "row 1: not JSON"),
    ("3", "row 1: not an object of columns"),
]


@pytest.mark.medium
def test_rows_that_the_model_cannot_score_are_refused(generated: Model, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.jsonl" for number in range(len(REFUSED_ROWS))]
    for file, (line, _) in zip(files, REFUSED_ROWS, strict=True):
        file.write_text(f"{line}\n")
    others = [tmp_path / "none.csv", tmp_path / "rows.xls", tmp_path / "short.csv"]
    others[2].write_text("int_0,int_1,cat_0,cat_1\n1,2,3\n")
    words = [*(words for _, words in REFUSED_ROWS), "No such file", "unknown kind of file", "row 2: 3 columns"]
    for result, part in zip(score_files(generated.directory / "served", *files, *others), words, strict=True):
        assert part in result["error"]


@pytest.mark.medium
@pytest.mark.parametrize(("name", "value"), [("ids", 5), ("ids", -1), ("ids_cat_0", 9), ("ids_cat_0", -2)])
def test_the_graph_refuses_ids_beyond_their_tables(generated: Model, name: str, value: int) -> None:
    inputs: dict[str, Any] = {"dense_features": np.zeros((2, 2), np.float32), "ids": np.zeros((2, 1), np.int64)}
    inputs["ids_cat_0"] = np.array([[1, -1], [0, 2]])
    session = InferenceSession(generated.directory / "served/model.onnx")
    assert len(session.run(["logits"], inputs)[0]) == 2
    inputs[name][0, 0] = value
    with pytest.raises(Exception, match="out of data bounds"):
        session.run(["logits"], inputs)


# ---- the directory


@pytest.mark.medium
def test_the_manifest_holds_every_file_s_digest(generated: Model, tmp_path: Path) -> None:
    served = shutil.copytree(
        generated.directory / "served", tmp_path / "served", ignore=shutil.ignore_patterns("__pycache__")
    )
    manifest = json.loads((served / "manifest.json").read_text())
    files = {str(path.relative_to(served)) for path in served.rglob("*") if path.is_file()}
    assert {*manifest["files"], "manifest.json"} == files
    for name, digest in manifest["files"].items():
        assert hashlib.sha256((served / name).read_bytes()).hexdigest() == digest["sha256"]
    rules = served / "encoder/rules.json"
    rules.write_text(rules.read_text().replace("cat_1", "cat_2"))
    program = [sys.executable, str(served / "score.py")]
    process = subprocess.run([*program, "--verify"], capture_output=True, text=True, check=False)
    assert (process.returncode, "rules.json: its SHA-256" in process.stderr) == (2, True)
    (served / "manifest.json").unlink()
    process = subprocess.run([*program, "rows.csv"], capture_output=True, text=True, check=False)
    assert (process.returncode, "no whole export" in process.stderr) == (2, True)


@pytest.mark.medium
def test_a_directory_that_exists_is_refused(generated: Model) -> None:
    arguments = [f"run={generated.directory}/run", f"out={generated.directory}/served"]
    with pytest.raises(UserError, match=r"served: exists; choose another name, or remove it \(rm -r .*\)"):
        command_here(generated.runtime, "export", *arguments)


@pytest.mark.medium
@pytest.mark.parametrize("name", ["write_encoder", "largest_difference", "write_atomically"])
def test_an_interrupted_export_is_no_directory(
    generated: Model, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["export", f"run={generated.directory}/run", f"out={tmp_path}/new"]

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(directory_module, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            command_here(generated.runtime, *arguments)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".new.part").mkdir()
    (tmp_path / ".new.part/model.onnx").touch()  # as a killed one leaves
    command_here(generated.runtime, *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.medium
def test_texts_are_left_out_and_values_still_encode(runtime: Runtime, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("label,word\n" + "".join(f"{n % 2},{'ab'[n % 2]}word\n" for n in range(40)))
    schema = "label: label\nsparse: [word]\n"
    keys = ["model.dense_arch=[]", "model.interaction=cat"]
    model = trained(runtime, tmp_path, "rows.csv", schema, "data.keep_texts=true", model_keys=keys)
    for name, texts in (("with", "true"), ("without", "false")):
        arguments = [f"out={tmp_path}/{name}", f"export.texts={texts}"]
        command_here(runtime, "export", f"run={tmp_path}/run", *arguments)
        content = b"".join(path.read_bytes() for path in (tmp_path / name).rglob("*.arrow"))
        assert (b"aword" in content) == (texts == "true")
        [result] = score_files(tmp_path / name, tmp_path / "rows.csv")
        np.testing.assert_allclose(result["logits"][:32], model.evaluate("train")[:32], rtol=0, atol=1e-5)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["out=new", "tables=int4"], "tables=int4: ONNX Runtime looks up in no such tables; use fp32, fp16 or int8"),
        (["out=new", "tables=bf16"], "use fp32, fp16 or int8"),
        (["out=new", "tables=int2"], "int2"),
        (["out=new", "tolerance=-1"], "at least 0"),
        (["out=/dev/null/new"], "out=/dev/null/new: /dev/null is a file; choose another directory"),
    ],
)
def test_what_cannot_be_a_directory_is_said(overrides: list[str], words: str, refused_command: Refusal) -> None:
    assert words in refused_command("export", "run=runs/none", *overrides)


@pytest.mark.medium
def test_missing_packages_are_named_with_their_line(generated: Model, tmp_path: Path) -> None:
    words = f"needs onnx and onnxruntime; install with: {sys.executable} -m pip install onnx onnxruntime"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(command, "find_spec", lambda name: None)
        with pytest.raises(UserError, match=words):
            command_here(generated.runtime, "export", f"run={generated.directory}/run", f"out={tmp_path}/new")
