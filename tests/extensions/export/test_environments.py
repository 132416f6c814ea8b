"""Exported directories in environments of their own: what score.py needs, and Triton's definitions."""

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import onnx
import pytest

from app.runtime.platform import Runtime
from tests.app.in_process import command_here
from tests.app.scoring.test_same_row import Model
from tests.extensions.export.serving import score_files
from tests.extensions.export.test_directories import criteo as criteo
from tests.extensions.export.test_directories import generated as generated
from tests.extensions.export.test_directories import rows_of_ids
from tests.once import made_once

REQUIREMENTS = Path(__file__).parents[3] / "requirements"
# Reads a file by tritonclient's definitions, and prints it as JSON.
READER = """
import sys
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

config = text_format.Parse(open(sys.argv[1]).read(), model_config_pb2.ModelConfig())
print(json_format.MessageToJson(config, preserving_proto_field_name=True))
"""


def python_of(factory: pytest.TempPathFactory, name: str) -> Path:
    """The Python of an environment that holds the packages of requirements/NAME.in alone."""

    def make(directory: Path) -> None:
        venv.create(directory, with_pip=False, symlinks=True)
        pip = [sys.executable, "-m", "pip", "--python", str(directory / "bin/python"), "install", "--quiet"]
        subprocess.run([*pip, "--disable-pip-version-check", "-r", str(REQUIREMENTS / f"{name}.in")], check=True)

    return made_once(factory, f"environment-{name}", make) / "bin/python"


@pytest.mark.slow("tool")
def test_score_py_needs_three_packages(criteo: Model, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    python, root = python_of(tmp_path_factory, "score"), criteo.directory
    listing = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True, check=False)
    assert "No module named 'torch'" in listing.stderr
    command_here(criteo.runtime, "export", f"run={root}/run", f"out={tmp_path}/served")
    shutil.move(tmp_path / "served", tmp_path / "moved")
    [result] = score_files(tmp_path / "moved", root / "new.tsv", python=(str(python), "-I"))
    expected = criteo.recommend("new.tsv")
    np.testing.assert_allclose(result["logits"], expected, rtol=0, atol=1e-5)
    command: list[str | Path] = [python, tmp_path / "moved/score.py", root / "new.tsv", "--verify"]
    process = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    name, *lines = process.stdout.splitlines()
    assert (name, len(lines)) == ("probability", len(expected))
    np.testing.assert_allclose([float(line) for line in lines], 1 / (1 + np.exp(-expected)), rtol=0, atol=1e-6)


@pytest.mark.slow("tool")
def test_triton_s_definitions_read_the_model_repository(
    generated: Model, runtime: Runtime, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = generated.directory / "run"
    command_here(runtime, "export", f"run={run}", f"out={tmp_path}/models", "export.layout=triton")
    [model] = (tmp_path / "models").iterdir()
    names = {path.name for path in model.iterdir()}
    assert names == {"1", "config.pbtxt", "encoder", "manifest.json", "score.py"}
    reader: list[str | Path] = [python_of(tmp_path_factory, "tritonclient"), "-c", READER, model / "config.pbtxt"]
    config = json.loads(subprocess.run(reader, capture_output=True, text=True, check=True).stdout)
    assert (config["name"], config["backend"]) == (model.name, "onnxruntime")
    inputs = {each["name"]: (each["data_type"], each["dims"]) for each in config["input"]}
    dense = {"dense_features": ("TYPE_FP32", ["2"])}
    assert inputs == dense | {"ids": ("TYPE_INT64", ["1"]), "ids_cat_0": ("TYPE_INT64", ["-1"])}
    assert [each["name"] for each in config["output"]] == ["logits", "probabilities"]
    assert all(each["dims"] == ["1"] and each["reshape"] == {} for each in config["output"])
    graph = onnx.load(model / "1/model.onnx").graph
    assert {each.name for each in graph.input} == set(inputs)
    assert all(each.type.tensor_type.shape.dim[0].dim_param == "samples" for each in graph.input)
    write_rows(generated, tmp_path / "rows.jsonl")
    [result] = score_files(model, tmp_path / "rows.jsonl")
    np.testing.assert_allclose(result["logits"], generated.evaluate("val"), rtol=0, atol=1e-5)


def write_rows(model: Model, path: Path) -> None:
    """Rows of the val split as JSON lines."""
    columns = rows_of_ids(model)
    rows = zip(*columns.values(), strict=True)
    path.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows), encoding="utf-8")
