"""The configuration of a model for NVIDIA Triton Inference Server, which reads it from its model repository."""

import json
from collections.abc import Mapping, Sequence

from onnx import TensorProto

CONFIG, VERSION = "config.pbtxt", "1"
MAX_BATCH_SIZE = 4096  # samples of a request, or of several that the server joins
TYPES: dict[int, str] = {TensorProto.FLOAT: "TYPE_FP32", TensorProto.INT64: "TYPE_INT64"}


def triton_config(name: str, inputs: Mapping[str, tuple[int, tuple[str | int, ...]]], outputs: Sequence[str]) -> str:
    """Return config.pbtxt of a model whose inputs and outputs begin with the batch's dimension."""
    lines = [f"name: {_quoted(name)}", 'backend: "onnxruntime"', f"max_batch_size: {MAX_BATCH_SIZE}"]
    for each, (kind, shape) in inputs.items():
        dims = ", ".join(str(size if isinstance(size, int) else -1) for size in shape[1:])
        lines += ["input {", f"  name: {_quoted(each)}", f"  data_type: {TYPES[kind]}", f"  dims: [ {dims} ]", "}"]
    for each in outputs:
        # The server wants a dimension beside the batch's, and the model has none.
        lines += ["output {", f"  name: {_quoted(each)}", "  data_type: TYPE_FP32"]
        lines += ["  dims: [ 1 ]", "  reshape { shape: [ ] }", "}"]
    return "\n".join([*lines, "dynamic_batching { }", ""])


def _quoted(text: str) -> str:
    """Return a string of protobuf's text format."""
    return json.dumps(text, ensure_ascii=False)
