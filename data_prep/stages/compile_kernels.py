"""The kernels of parsing and encoding, compiled or loaded from their cache before rows arrive."""

from data_prep.encoding.dense import encode_dense
from data_prep.encoding.encoder import encode_hash
from data_prep.parsing.criteo import parse_bytes


def compile_kernels() -> None:
    """Run each kernel on one row."""
    block = parse_bytes(b"0" + b"\t" * 39 + b"\n", "warm-up")
    encode_dense(block.dense)
    encode_hash(block.sparse, 2)
