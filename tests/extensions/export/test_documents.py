"""The manifest of an exported directory."""

import json
from typing import Any

import pytest
from msgspec import structs

from app.record.provenance import describe_run
from common.documents import decode, encode
from extensions.export.documents import ExportConfig, ExportedDirectory
from tests.common.test_keys import OF_RUNTIME
from tests.key_limits import TOLERANCE, check_limits

# In the order in which earlier releases wrote them.
KEYS = ["code", "image", "base_image", "versions", "hardware", "environment", "argv", "run", "checkpoint", "step"]
KEYS += ["dataset_digest", "tables", "imports", "inputs", "dense_features", "sparse_features", "tolerance"]
KEYS += ["outputs", "model", "files"]


def about() -> ExportedDirectory:
    return ExportedDirectory(
        **structs.asdict(describe_run()),
        run="runs/x",
        checkpoint="step_00000008",
        step=8,
        dataset_digest="d" * 64,
        tables="int8",
        imports=["numpy"],
        inputs={"dense_features": "[B, N] float32", "ids": "[B, F] int64"},
        dense_features=["int_0"],
        sparse_features={"cat_0": 10},
        tolerance=1e-5,
        outputs={"logits": "[B] float32"},
        model="model.onnx",
        files={},
    )


def test_it_is_written_as_ever_and_read_as_written() -> None:
    text = encode(about(), indent=1)
    document = json.loads(text)
    assert list(document) == KEYS
    assert (document["step"], document["inputs"]["ids"]) == (8, "[B, F] int64")
    assert text == json.dumps(document, indent=1)
    further = json.dumps({**document, "brand_new": 1}, indent=1)
    assert encode(decode(further, ExportedDirectory), indent=1) == further


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"step": "x"}, "key 'step' is \"x\": expected `int`"), ({"inputs": None}, "key 'inputs' is null")],
)
def test_what_is_damaged_is_named(change: dict[str, Any], reason: str) -> None:
    document = json.loads(encode(about()))
    with pytest.raises(ValueError, match=reason):
        decode(json.dumps({**document, **change}), ExportedDirectory)
    del document["run"]
    with pytest.raises(ValueError, match="key 'run' is missing"):
        decode(json.dumps(document), ExportedDirectory)
    text = json.dumps(document)
    with pytest.raises(ValueError, match="Unterminated string"):
        decode(text[: text.index("step_")], ExportedDirectory)


def test_every_key_has_its_limits_and_a_meaning() -> None:
    check_limits(ExportConfig, {**OF_RUNTIME, "tolerance": TOLERANCE})
