"""Attention's Triton kernels compiled for GPUs, which need not be there.

Prints a JSON list of architecture, dtype, kernel, and bytes of local memory that a program takes.
"""

import json
import tempfile
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from extensions.sequences import attention_triton
from extensions.sequences.event_log import SequenceLayout

TARGETS = {"sm_90": GPUTarget("cuda", 90, 32), "gfx942": GPUTarget("hip", "gfx942", 64)}
KERNELS = {
    "forward": (attention_triton._outputs_or_query_gradients, {"backward": False}),
    "queries": (attention_triton._outputs_or_query_gradients, {"backward": True}),
    "keys": (attention_triton._key_and_value_gradients, {}),
}
DTYPES = {"bf16": torch.bfloat16}


def options(dtype: torch.dtype) -> dict[str, Any]:
    """Return the launch arguments of the kernels for MLPerf's heads."""
    heads = torch.empty(8, 4, 128, dtype=dtype)
    context: Any = type("Context", (), {"layout": SequenceLayout([8], 8.0), "candidates_only": False})
    *_, launch_options = attention_triton._launch(context, heads, heads)
    return launch_options


def compiled(kernel: Any, constexprs: dict[str, Any], dtype: str, target: GPUTarget) -> Any:
    """The kernel as it is launched with tensors of this type."""
    launched = {key: constexprs[key] for key in ("num_warps", "num_stages")}
    types = {"scale": "fp32", "factor": "fp32", **dict.fromkeys(("key_starts", "query_starts"), "*i64")}
    signature = {name: "constexpr" if name in constexprs else types.get(name, f"*{dtype}") for name in kernel.arg_names}
    places = {name: (number,) for number, name in enumerate(kernel.arg_names)}
    constants = {places[name]: value for name, value in constexprs.items() if name in places}
    aligned = {places[name]: [["tt.divisibility", 16]] for name, kind in signature.items() if kind.startswith("*")}
    return triton.compile(ASTSource(kernel, signature, constants, aligned), target=target, options=launched)


def main() -> None:
    """Compile all, without files of earlier compilations."""
    kernels = []
    with tempfile.TemporaryDirectory() as directory:
        triton.knobs.cache.dir = directory
        for architecture, target in TARGETS.items():
            for dtype, kind in DTYPES.items():
                for name, (kernel, extra) in KERNELS.items():
                    binary = compiled(kernel, {**options(kind), **extra}, dtype, target)
                    kernels.append([architecture, dtype, name, binary.metadata.shared])
    print(json.dumps(kernels))


if __name__ == "__main__":
    main()
