"""python -m app.bench [operators=[embedding_bag,step]]: how fast the parts are, and how near this machine's limits.

Measured at the sizes of the recipe, or of shape.*, on random long-tailed ids: lookups, matrix products, exchanges
between processes (NPROC=n) and whole steps. Each with its median, 10th and 90th percentile, the minimum bytes and FLOPs
that it needs, and their share of the memory bandwidth and matrix rate measured in the same run. out=FILE.json keeps the
figures; with 'compare=[here.json,there.json]' nothing is measured, and those of several machines stand side by side.
"""

if __name__ == "__main__":  # before the imports below, which may take seconds
    from app.commands import COMMANDS
    from common.cli import run

    run(COMMANDS["bench"])


from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from msgspec import structs
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from app.config.commands import BenchConfig
from app.config.kinds import Algorithm, OptimizerName
from app.config.model import ModelConfig, published_tables
from app.config.train import require_graphs
from app.data.batch import Batch, layout_of
from app.metrics.timing import Ceilings, WorkTiming, higher, measure_ceilings, time_work
from app.model.dlrm import DLRM
from app.model.embeddings import parameter_counts
from app.record.documents import Provenance
from app.record.provenance import describe_run
from app.runtime import platform
from app.runtime.platform import READING, Runtime
from app.training import session
from common.command import log
from common.documents import Json, encode, read_document
from common.errors import UserError
from common.files import write_atomically
from data_prep.dataset.format import Manifest

NUM_DENSE, DEFAULT_TABLES = 13, "criteo_kaggle"
FLOAT_BYTES = ID_BYTES = 4
BATCHES = 8  # that whole steps take in turn
COLUMNS = ("", "median ms", "p10", "p90", "samples/s", "GB/s", "of bandwidth", "GFLOP/s", "of matrix rate")
REMEDY = "give files that python -m app.bench out=FILE.json has written"


@dataclass(frozen=True)
class Shape:
    """Sizes of one process's part: samples (B), dense features (N), rows of each table (F), D, ids per bag."""

    batch_size: int
    num_dense: int
    num_embeddings: tuple[int, ...]
    embedding_dim: int
    bag_sizes: tuple[int, ...]

    @property
    def features(self) -> list[str]:
        return [f"cat_{i}" for i in range(len(self.num_embeddings))]

    @property
    def ids(self) -> int:
        """Return the number of ids in a batch, over all features."""
        return self.batch_size * sum(self.bag_sizes)

    @property
    def pooled(self) -> int:
        """Return the number of elements in the pooled vectors of a batch: B * F * D."""
        return self.batch_size * len(self.num_embeddings) * self.embedding_dim

    def __str__(self) -> str:
        tables = f"{len(self.num_embeddings)} tables of {sum(self.num_embeddings):,} rows"
        return f"B={self.batch_size}, {tables}, D={self.embedding_dim}, {sum(self.bag_sizes)} ids a sample"


class Case(NamedTuple):
    """Work to be timed, and the minimum that one run of it must do.

    name: family/variant. samples: those of a run over all processes; 0 if that is meaningless. bytes: those that move
    between memory and the device's cores if no cache helps: each operand is read once, each result written once, and
    rows of tables once per lookup. flops: of matrix products; a multiplication and an addition count as two.
    """

    name: str
    work: Callable[[], Any]
    samples: int
    bytes: int
    flops: int


def main(config: BenchConfig) -> None:
    """Measure as configured, or compare what was measured."""
    if config.compare:
        print(comparison(config.compare))
        return
    with platform.joined(config, READING) as runtime:
        require_graphs(config.runtime, runtime.device.type)
        _measure(config, shape_of(config, runtime.world_size), runtime)


def _measure(config: BenchConfig, shape: Shape, runtime: Runtime) -> None:
    """Time the chosen cases between two measurements of the ceilings; print the table, and write the JSON if asked."""
    processes, threads = f"{runtime.world_size} process(es)", f"{runtime.num_threads} threads each"
    log.info("bench: %s, %s on %s, %s", shape, processes, runtime.platform, threads)
    dtype = torch.bfloat16 if config.runtime.precision == "bf16" else torch.float32
    # The limits are measured before and after the cases, since other work may disturb one of the two.
    ceilings = measure_ceilings(runtime.device, dtype, config.seconds, runtime.highest)
    if ceilings is None:
        raise UserError("runtime: too little free memory on the GPU to measure its limits; end what else uses it")
    timed: list[tuple[Case, WorkTiming]] = []
    selected, device, model = tuple(config.chosen_operators), runtime.device, config.model
    families: dict[tuple[str, ...], Callable[[], Iterator[Case]]] = {
        ("embedding_bag",): lambda: lookup_cases(shape, device),
        ("interaction", "mlp"): lambda: product_cases(shape, model, device, dtype),
        ("collective",): lambda: collective_cases(shape, model, device),
        ("step",): lambda: step_cases(shape, config, runtime),
    }
    # One family after the other, so that memory holds the tables of one.
    for names, make in families.items():
        try:
            for case in make() if any(name.startswith(names) for name in selected) else ():
                if case.name.startswith(selected):
                    timed.append((case, time_work(case.work, device, config.seconds, runtime.highest)))
                    log.info("bench: %s %.3f ms", case.name, timed[-1][1].median * 1e3)
        except torch.OutOfMemoryError:
            if runtime.world_size > 1:
                raise  # the other processes wait in this case's collectives
            log.warning("bench: %s ends early: out of memory; give a smaller shape.batch_size", "/".join(names))
    ceilings = higher(ceilings, measure_ceilings(runtime.device, dtype, config.seconds, runtime.highest))
    if runtime.rank > 0:
        return
    results = [result(case, timing, ceilings) for case, timing in timed]
    print(results_table(results, ceilings))
    if config.out is None:
        log.info("bench: out=FILE.json keeps these figures, 'compare=[FILE.json,OTHER.json]' compares machines")
        return
    document = Document(
        **structs.asdict(describe_run()),
        shape=vars(shape),
        model={"interaction": model.interaction, "dense_arch": model.dense_arch, "over_arch": model.over_arch},
        world_size=runtime.world_size,
        platform=runtime.platform,
        num_threads=runtime.num_threads,
        ceilings=ceilings,
        results=results,
    )
    write_atomically(Path(config.out), (encode(document, indent=1) + "\n").encode())
    log.info("bench: %s", config.out)


def shape_of(config: BenchConfig, world_size: int) -> Shape:
    """Return the sizes at which to measure. Refuse lists of different lengths, and a batch that cannot be shared."""
    shape, train = config.shape, config.train
    if shape.batch_size is None and train.global_batch_size % world_size:
        batch = f"train.global_batch_size={train.global_batch_size}"
        raise UserError(f"{batch}: not divisible by the {world_size} processes")
    published = published_tables(config.data.published_tables or DEFAULT_TABLES).rows.values()
    rows = shape.num_embeddings or [min(count, shape.most_rows) for count in published]
    expanded = config.data.multi_hot.bags()
    bags = shape.bag_sizes or (list(expanded.sizes) if expanded is not None else [1] * len(rows))
    if len(bags) != len(rows):
        raise UserError(f"shape.bag_sizes: {len(bags)} of them for {len(rows)} tables; give one a table")
    batch_size = shape.batch_size or train.global_batch_size // world_size
    return Shape(batch_size, shape.num_dense or NUM_DENSE, tuple(rows), config.model.embedding_dim, tuple(bags))


def random_batch(shape: Shape, seed: int, device: torch.device) -> Batch:
    """Return a batch of random samples, a quarter of them clicked; ids have a long tail: rows * u^4 with u uniform."""
    rng, size = np.random.default_rng(seed), shape.batch_size
    tables = zip(shape.num_embeddings, shape.bag_sizes, strict=True)
    ids = [(rng.random(size * bag) ** 4 * rows).astype(np.int32) for rows, bag in tables]
    layout = layout_of(shape.features, [np.full(size, bag) for bag in shape.bag_sizes])
    sparse = layout.bags(torch.from_numpy(np.concatenate(ids))).to(device)
    dense = torch.from_numpy(rng.standard_normal((size, shape.num_dense), dtype=np.float32)).to(device)
    labels = torch.from_numpy((rng.random(size) < 0.25).astype(np.float32)).to(device)
    return Batch(dense, sparse, labels, size, num_global=size)


def lookup_bytes(shape: Shape) -> int:
    """Return the bytes of one lookup of a batch: ids and rows are read, pooled vectors written."""
    return ID_BYTES * shape.ids + FLOAT_BYTES * (shape.ids * shape.embedding_dim + shape.pooled)


def update_bytes(shape: Shape, algorithm: Algorithm) -> int:
    """Return the bytes of one fused update: gradients are read, rows and state read and written once per id."""
    row = shape.embedding_dim + algorithm.state_elements(shape.embedding_dim)
    return FLOAT_BYTES * (shape.pooled + 2 * shape.ids * row) + ID_BYTES * shape.ids


def lookup_cases(shape: Shape, device: torch.device) -> Iterator[Case]:
    """Yield a lookup in FBGEMM's tables, then forward and backward with the update of each optimizer."""
    bags = random_batch(shape, 0, device).sparse_features
    values, offsets = bags.values().long(), bags.offsets().long()
    grad = torch.ones(shape.batch_size, len(shape.num_embeddings) * shape.embedding_dim, device=device)
    on_gpu, on_cpu = (EmbeddingLocation.DEVICE, ComputeDevice.CUDA), (EmbeddingLocation.HOST, ComputeDevice.CPU)
    location = on_gpu if device.type == "cuda" else on_cpu
    for name in (name for name in OptimizerName if name.algorithm.fused_on_cpu):
        tables = SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, shape.embedding_dim, *location) for rows in shape.num_embeddings],
            optimizer=EmbOptimType[str(name.algorithm.fbgemm)],
            learning_rate=0.01,
            pooling_mode=PoolingMode.SUM,
            device=device,
        )

        label, moved = f"embedding_bag/tbe_{name.value}_sum", lookup_bytes(shape)
        # The forward is the same with every optimizer, so one of them is enough.
        if name is OptimizerName.sgd:
            forward = torch.no_grad()(partial(tables, values, offsets))
            yield Case(f"{label}_forward", forward, shape.batch_size, moved, 0)
        moved += update_bytes(shape, name.algorithm)
        train = partial(lambda tables: tables(values, offsets).backward(grad), tables)
        yield Case(f"{label}_train", train, shape.batch_size, moved, 0)
        del tables, train  # before the next optimizer's tables are allocated


def flops_of(work: Callable[[], Any]) -> int:
    """Return the FLOPs of the matrix products that `work` runs, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def dense_layers(shape: Shape, model: ModelConfig) -> DLRM:
    """Return a model for its dense layers alone: its tables are an Identity, so it cannot run as a whole."""
    return DLRM(model, shape.num_dense, len(shape.num_embeddings), nn.Identity())


def product_cases(shape: Shape, model: ModelConfig, device: torch.device, dtype: torch.dtype) -> Iterator[Case]:
    """Yield forward and backward of the model's interaction, dense_arch and over_arch."""
    layers, size = dense_layers(shape, model).to(device), shape.batch_size
    dense = torch.randn(size, shape.embedding_dim, device=device)
    sparse = torch.randn(size, len(shape.num_embeddings), shape.embedding_dim, device=device)
    numbers = torch.randn(size, shape.num_dense or 1, device=device)
    crossed = torch.randn(size, layers.interaction.num_outputs, device=device)

    def train(module: nn.Module, inputs: Sequence[Tensor]) -> None:
        for tensor in (*inputs, *module.parameters()):
            tensor.requires_grad_().grad = None
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
            outputs = module(*inputs)
        outputs.backward(torch.ones_like(outputs))

    parts: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
        f"interaction/{model.interaction}": (layers.interaction, (dense, sparse)),
        "mlp/dense_arch": (layers.dense_arch, (numbers,)),
        "mlp/over_arch": (layers.over_arch, (crossed,)),
    }
    for name, (module, inputs) in parts.items():
        work = partial(train, module, inputs)
        moved = FLOAT_BYTES * sum(tensor.numel() for tensor in (*inputs, *module.parameters(), module(*inputs)))
        # The backward reads gradients of outputs, writes those of inputs and weights, and reads both again.
        yield Case(f"{name}_train", work, size, 3 * moved, flops_of(work))


def collective_cases(shape: Shape, model: ModelConfig, device: torch.device) -> Iterator[Case]:
    """Yield all-reduce of the dense gradients and all-to-all of the pooled vectors; nothing for a single process.

    Bytes are those that a process sends and receives: 2 (W - 1) / W of the array for an all-reduce, (W - 1) / W of it
    each way for an all-to-all.
    """
    world_size = dist.get_world_size()
    if world_size == 1:
        return
    count = sum(parameter.numel() for parameter in dense_layers(shape, model).parameters())
    gradients = torch.ones(count, device=device)
    moved = 2 * (2 * FLOAT_BYTES * count * (world_size - 1) // world_size)
    yield Case("collective/all_reduce", lambda: dist.all_reduce(gradients), 0, moved, 0)
    elements = -(-shape.pooled // world_size) * world_size
    sent, received = torch.ones(elements, device=device), torch.empty(elements, device=device)
    moved = 2 * (FLOAT_BYTES * elements * (world_size - 1) // world_size)
    yield Case("collective/all_to_all", lambda: dist.all_to_all_single(received, sent), 0, moved, 0)


def step_cases(shape: Shape, config: BenchConfig, runtime: Runtime) -> Iterator[Case]:
    """Yield one forward and one training step, through DistributedModelParallel."""
    schema = {"label": "label", "dense": ["int"] * shape.num_dense, "sparse": shape.features}
    rows = dict(zip(shape.features, shape.num_embeddings, strict=True))
    manifest = Manifest(schema, {"name": "random"}, rows, {}, [], 0, 0.25, "benchmark")
    run = session.build(config, runtime, Path(), manifest)
    # A single batch would stay in the processor's cache, unlike the batches of a run.
    batches = cycle([random_batch(shape, seed, runtime.device) for seed in range(BATCHES)])

    def train() -> None:
        batch = next(batches)
        run.optimizer.zero_grad()
        run.backward(run.loss_of(run.forward(batch), batch))
        run.optimizer.step()

    def inference() -> None:
        with torch.no_grad():
            run.forward(next(batches))

    dense = FLOAT_BYTES * parameter_counts(run.model)["dense"]
    samples, moved = shape.batch_size * runtime.world_size, lookup_bytes(shape) + dense
    yield Case("step/inference", inference, samples, moved, flops_of(inference))
    flops = flops_of(train)  # counted before compiling, since a program's products are not seen
    run.compile(shape.batch_size)
    # Dense parameters are read in forward and backward; their gradients are written, then read and applied.
    moved = lookup_bytes(shape) + update_bytes(shape, config.optimizer.name.algorithm) + 5 * dense
    yield Case("step/train", train, samples, moved, flops)


class Document(Provenance, kw_only=True):
    """FILE.json of a benchmark: the results of all cases, beside the measured limits of the machine (`ceilings`)."""

    shape: Json
    model: Json
    world_size: int
    platform: str
    num_threads: int
    ceilings: Ceilings
    results: list[dict[str, Any]]  # as from `result`


def result(case: Case, timing: WorkTiming, ceilings: Ceilings) -> dict[str, Any]:
    """Return a case's figures; a rate or share of 0, which has no meaning, becomes None.

    Shares of the measured ceilings exceed 1 if caches serve the counted bytes.
    """
    seconds = timing.median
    return {
        "name": case.name,
        "median_ms": seconds * 1e3,
        "p10_ms": timing.p10 * 1e3,
        "p90_ms": timing.p90 * 1e3,
        "samples_per_second": case.samples / seconds or None,
        "bytes": case.bytes,
        "flops": case.flops,
        "share_of_bandwidth": case.bytes / seconds / ceilings.bytes_per_second,
        "share_of_matrix_rate": case.flops / seconds / ceilings.flops_per_second or None,
    }


def results_table(results: Sequence[dict[str, Any]], ceilings: Ceilings) -> str:
    """Return one line per result; the ceilings, which shares refer to, stand above."""
    heading = (
        f"Ceilings measured here: {ceilings.bytes_per_second / 1e9:.1f} GB/s (triad), "
        f"{ceilings.flops_per_second / 1e9:.1f} GFLOP/s ({ceilings.dtype} product). "
        "Above 100% of bandwidth, caches served the counted bytes."
    )
    rows: list[tuple[str, ...]] = [COLUMNS]
    for measured in results:
        times = (f"{measured[name]:.3f}" for name in ("median_ms", "p10_ms", "p90_ms"))
        rate = f"{measured['samples_per_second']:,.0f}" if measured["samples_per_second"] else ""
        moved, flops = (measured[amount] / measured["median_ms"] / 1e6 for amount in ("bytes", "flops"))
        share, bandwidth = measured["share_of_matrix_rate"], measured["share_of_bandwidth"]
        products = (f"{flops:.1f}", f"{share:.0%}") if share else ("", "")
        rows.append((measured["name"], *times, rate, f"{moved:.2f}", f"{bandwidth:.0%}", *products))
    return "\n".join([heading, "", *_markdown(rows)])


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as a Markdown table; the first row has the names."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in padded]
    rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
    return [lines[0], f"|{rule}|", *lines[1:]]


def comparison(paths: Sequence[str]) -> str:
    """Return a table of the cases that all documents have; ratios are the first machine's times over the others'."""
    try:
        documents = [read_document(Path(path), Document, REMEDY) for path in paths]
    except FileNotFoundError as error:
        raise UserError(f"{error.filename}: no such file; {REMEDY}") from error
    first = documents[0]
    for path, document in zip(paths, documents, strict=True):
        for part, expected, now in (("shape", first.shape, document.shape), ("model", first.model, document.model)):
            for name in expected:
                if expected[name] != now.get(name):
                    raise UserError(
                        f"{path}: {part}.{name} is {now.get(name)}, that of {paths[0]} is {expected[name]}: times of "
                        "different work; measure both with the same recipe and shape"
                    )
    figures = [{measured["name"]: measured for measured in document.results} for document in documents]
    common = [name for name in figures[0] if all(name in measured for measured in figures)]
    if not common:
        raise UserError(f"{', '.join(paths)}: no case is in all of them; give the same operators on each machine")
    numbers = range(1, len(paths) + 1)
    columns = [f"{number}: {figure}" for figure in ("ms", "of limit") for number in numbers]
    rows: list[tuple[str, ...]] = [("", *columns, *(f"1 / {number}" for number in numbers[1:]))]
    for name in common:
        cases = [measured[name] for measured in figures]
        shares = [max(case["share_of_bandwidth"], case["share_of_matrix_rate"] or 0) for case in cases]
        ratios = [f"{cases[0]['median_ms'] / case['median_ms']:.2f}" for case in cases[1:]]
        times = [f"{case['median_ms']:.3f}" for case in cases]
        rows.append((name, *times, *(f"{share:.0%}" for share in shares), *ratios))
    lines = []
    for number, path, document in zip(numbers, paths, documents, strict=True):
        limits, torch_release = document.ceilings, document.versions.get("torch")
        lines.append(
            f"{number}: {path}: {document.platform}, {document.device(document.platform)}, {document.world_size} "
            f"process(es) of {document.num_threads} threads, torch {torch_release}, commit "
            f"{(document.commit or 'unknown')[:7]}; limits {limits.bytes_per_second / 1e9:.1f} GB/s, "
            f"{limits.flops_per_second / 1e9:.1f} GFLOP/s ({limits.dtype})"
        )
    legend = "Medians. Of limit: the larger share of the machine's own memory bandwidth and matrix rate."
    left_out = sorted({name for measured in figures for name in measured} - {*common})
    note = [f"Not in all files: {', '.join(left_out)}"] if left_out else []
    return "\n".join([*lines, "", legend, "", *_markdown(rows), *note])
