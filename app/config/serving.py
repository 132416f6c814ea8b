"""Tables as they are served: what their values are kept in once training is over."""

from enum import Enum


class TablePrecision(Enum):
    """int8, int4: row-wise, with a scale and a bias of fp16 each row. Arithmetic is fp32 in all of them."""

    fp32 = "fp32"
    fp16 = "fp16"
    bf16 = "bf16"
    int8 = "int8"
    int4 = "int4"


BITS = {
    TablePrecision.fp32: 32,
    TablePrecision.fp16: 16,
    TablePrecision.bf16: 16,
    TablePrecision.int8: 8,
    TablePrecision.int4: 4,
}
SCALE_AND_BIAS_BYTES = 4  # of an integer row, beside its values


def row_bytes(precision: TablePrecision, dim: int) -> int:
    """Bytes of a row of `dim` values."""
    integer = precision in (TablePrecision.int8, TablePrecision.int4)
    return dim * BITS[precision] // 8 + (SCALE_AND_BIAS_BYTES if integer else 0)
