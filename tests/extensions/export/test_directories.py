"""Exported directories: score.py, on raw rows, gives what evaluate and recommend give, without our code."""

import gzip
import hashlib
import inspect
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.runtime.platform import Runtime
from data_prep.dataset.format import load_manifest
from extensions.export import directory as directory_module
from tests.app.in_process import command_here, train_here
from tests.app.scoring.test_same_row import TRAIN, Model, drawn_model, trained
from tests.app.scoring.test_sampling import CORRECTED
from tests.data_prep.conftest import prepare, seeds
from tests.oracles.own_tables import objects_of, write_lines, write_raw

REFUSED_MODULES = (
    "app",
    "common",
    "data_prep",
    "extensions",
    "fbgemm_gpu",
    "msgspec",
    "numba",
    "onnx",
    "torch",
    "torchrec",
)
PROGRAM = """
import importlib.abc, json, sys
from pathlib import Path
from typing import Any

REFUSED = {refused!r}


class Guard(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in REFUSED:
            raise ModuleNotFoundError(name)


{row_keys}

sys.meta_path.insert(0, Guard())
sys.path.insert(0, sys.argv[1])
import score

scorer, results = score.Scorer(threads=1), []
for name in sys.argv[2:]:
    try:
        rows = score.read_rows(Path(name), scorer)
        inputs = scorer.encode(rows.columns, name, rows.numbers)
        logits = scorer.run(inputs, scorer._session.get_outputs()[0].name).tolist()
        results.append(dict(logits=logits, scores=scorer.run(inputs).tolist(), keys=row_keys(inputs)))
    except score.UserError as error:
        results.append(dict(error=str(error)))
print(json.dumps(results))
"""


def row_keys(inputs: "dict[str, Any]") -> "list[str]":
    """A name for each row of the model's inputs, the same for the same inputs."""
    arrays = [inputs[name] for name in sorted(inputs)]
    return [b"".join(array[row].tobytes() for array in arrays).hex() for row in range(len(arrays[0]))]


def score_files(
    directory: Path, *files: Path, python: tuple[str, ...] = (sys.executable, "-I")
) -> list[dict[str, Any]]:
    """Logits and scores of each file's rows, or the error that refuses it."""
    program = PROGRAM.format(refused=REFUSED_MODULES, row_keys=inspect.getsource(row_keys))
    command = [*python, "-c", program, str(directory), *map(str, files)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    results: list[dict[str, Any]] = json.loads(process.stdout)
    return results


INTERACTIONS: list[list[str]] = [
    [],
    ["model.interaction=dcn", "model.batch_norm=true", "model.over_arch=[4,1]"],
    ["model.interaction=projection", "model.tables.pooling=mean"],
    ["model.interaction=scalar_pairs"],
    ["model.interaction=cat"],
    ["model.numeric=vectors", "model.dense_arch=[]"],
    ["model.batch_norm=true"],
]


@pytest.mark.medium
@pytest.mark.parametrize("seed", seeds(2, 9))
def test_drawn_tables(seed: int, runtime: Runtime, tmp_path: Path) -> None:
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


IN_A_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np, pandas as pd, polars as pl, pyarrow as pa
from score import Scorer, UserError, score

scorer = Scorer(threads=1)
one = {"int_0": [0.5, 1.0], "int_1": [2, None], "cat_0": [[1, 2, 3], [8]], "cat_1": [4, 0], "other": ["x", "y"]}
rows, table = [dict(zip(one, values)) for values in zip(*one.values())], pa.table(one)
frame, scores = pd.DataFrame(rows), score(one)
assert scores.shape == (2,) and scores.dtype == np.float32
forms = [rows, frame.to_dict("records"), {**one, "int_0": np.array([0.5, 1.0])}, {**one, "int_1": [2, float("nan")]}]
forms += [frame, frame.convert_dtypes(), pl.DataFrame(rows)]
forms += [table, table.to_batches()[0], table.to_reader(), pa.concat_tables([table[:1], table[1:]])]
for form in forms:
    assert np.abs(score(form) - scores).max() == 0, form
many = {name: values * 5000 for name, values in one.items()}
many["cat_0"][7] = [5] * 3000  # all others would be padded to its length
many_scores = scorer.score(many)
assert many_scores.shape == (10000,) and np.abs(many_scores[8:].reshape(-1, 2) - scores).max() < 1e-6
assert many_scores[7] != many_scores[9]
assert len(score({name: [] for name in one})) == len(score([])) == len(score(pa.table({}))) == 0
mixed, twice = frame.astype(object).assign(int_0=[1, "a"]), table.append_column("int_0", table["int_0"])
for form in (None, "new.csv", rows[0], [rows[0], 7], twice, {**one, "cat_1": [1]}, mixed, [{**rows[0], "cat_0": {1}}]):
    try:
        score(form)
    except UserError as error:
        print(error)
"""
REMEDY = "; give lists or arrays by column, a list of dicts, or a table of pandas, polars or pyarrow"
NOT_SCORED = [f"rows: NoneType is not a table{REMEDY}", f"rows: str is not a table{REMEDY}"]
NOT_SCORED += ["rows, column int_0: float, not a list or an array; give [0.5] for one value"]
NOT_SCORED += [f"rows: list is not a table{REMEDY}", "rows: a column is named twice, int_0; rename one"]
NOT_SCORED += ["rows: columns of different lengths; give each row every column"]
NOT_SCORED += ["rows: not readable through Arrow's interface (", "rows: row 1, column cat_0: {1} is no id"]


@pytest.mark.medium
def test_rows_in_memory(generated: Model) -> None:
    program = [sys.executable, "-c", IN_A_PROGRAM, str(generated.directory / "served")]
    process = subprocess.run(program, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    for line, message in zip(process.stdout.splitlines(), NOT_SCORED, strict=True):
        assert line.startswith(message)


REFUSED_ROWS = [
    ('{"int_0": NaN, "int_1": 2, "cat_0": [8], "cat_1": 1}', "row 1, column int_0: NaN, which JSON does not have"),
    ('{"int_0": 1, "int_1": 2, "cat_0": [8, 9], "cat_1": 1}', "row 1, column cat_0: 9 is no id from 0 to 8"),
    ('{"int_0": 1, "int_1": 2, "cat_0": [1], "cat_1": 5}', "row 1, column cat_1: 5 is no id from 0 to 4"),
    ('{"int_0": "x", "int_1": 2, "cat_0": [1], "cat_1": 1}', "row 1, column int_0: 'x' is not a number"),
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
