"""Comparison of bench results from several machines, side by side."""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from app.benchmark.case import markdown_lines
from app.metrics.documents import rest
from app.record.documents import Provenance
from common.documents import Json, Number, read_document
from common.errors import UserError

REMEDY = "give files that python -m app.bench out=FILE.json has written"


class Measured(Struct):
    """Figures of a case that are compared."""

    name: str
    median_ms: Number
    share_of_bandwidth: Number
    share_of_matrix_rate: Number | None


class Limits(Struct):
    """A machine's measured ceilings."""

    bytes_per_second: Number
    flops_per_second: Number
    dtype: str


class Document(Provenance, kw_only=True):
    """Document that bench writes."""

    shape: Json
    model: Json
    world_size: int
    platform: str
    num_threads: int
    ceilings: Limits
    results: list[Measured]
    rest: Json = rest()


def comparison(paths: Sequence[str]) -> str:
    """Return a table of the cases that all documents have; ratios are the first machine's times over the others'.

    Raises:
        UserError: a file is no such document, or the documents differ in sizes or models.
    """
    documents = [_read(Path(path)) for path in paths]
    first, *others = documents
    for path, document in zip(paths[1:], others, strict=True):
        for part, expected, other in (("shape", first.shape, document.shape), ("model", first.model, document.model)):
            for name in expected:
                if expected[name] != other.get(name):
                    raise UserError(
                        f"{path}: {part}.{name} is {other.get(name)}, that of {paths[0]} is {expected[name]}: times of "
                        "different work; measure both with the same recipe and shape"
                    )
    numbers = range(1, len(paths) + 1)
    lines = [f"{number}: {path}: {_about(each)}" for number, path, each in zip(numbers, paths, documents, strict=True)]
    figures = [{measured.name: measured for measured in document.results} for document in documents]
    common = [name for name in figures[0] if all(name in measured for measured in figures)]
    if not common:
        raise UserError(f"{', '.join(paths)}: no case is in all of them; give the same operators on each machine")
    of_each = [f"{number}: {figure}" for figure in ("ms", "of limit") for number in numbers]
    rows = [("", *of_each, *(f"1 / {number}" for number in numbers[1:]))]
    for name in common:
        cases = [measured[name] for measured in figures]
        shares = [max(case.share_of_bandwidth, case.share_of_matrix_rate or 0) for case in cases]
        ratios = [f"{cases[0].median_ms / case.median_ms:.2f}" for case in cases[1:]]
        times = [f"{case.median_ms:.3f}" for case in cases]
        rows.append((name, *times, *(f"{share:.0%}" for share in shares), *ratios))
    left_out = sorted({name for measured in figures for name in measured} - {*common})
    note = [f"Not in all files: {', '.join(left_out)}"] if left_out else []
    legend = "Medians. Of limit: the larger share of the machine's own memory bandwidth and matrix rate."
    return "\n".join([*lines, "", legend, "", *markdown_lines(rows), *note])


def _read(path: Path) -> Document:
    try:
        return read_document(path, Document, REMEDY)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; {REMEDY}") from error


def _about(document: Document) -> str:
    """Describe a measurement: device, processes, precision of the matrix limit, releases and commit."""
    limits, versions = document.ceilings, document.versions
    fbgemm = versions.get("fbgemm-gpu") or versions.get("fbgemm_gpu-cpu")
    return (
        f"{document.platform}, {document.device(document.platform)}, {document.world_size} process(es) of "
        f"{document.num_threads} threads, torch {versions.get('torch')}, FBGEMM {fbgemm}, commit "
        f"{(document.commit or 'unknown')[:7]}; limits {limits.bytes_per_second / 1e9:.1f} GB/s, "
        f"{limits.flops_per_second / 1e9:.1f} GFLOP/s ({limits.dtype})"
    )
