"""python -m app.bench [operators=[embedding_bag,step]]: how fast the parts are, and how near this machine's limits.

Measured at the sizes of the recipe, or of shape.*, on random long-tailed ids: lookups, interactions, perceptrons,
optimizer steps, exchanges between processes (NPROC=n), the input path, whole steps, scoring from one sample to many.
Each with its median, 10th and 90th percentile, the minimum bytes and FLOPs that it needs, and their share of the
memory bandwidth and matrix rate measured in the same run. out=FILE.json keeps the figures; with
'compare=[here.json,there.json]' nothing is measured, and those of several machines stand side by side.
"""

if __name__ == "__main__":  # before the imports below, which may take seconds
    from app.commands import COMMANDS
    from common.cli import run

    run(COMMANDS["bench"])


import json
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from app.benchmark import input_path, operators, steps
from app.benchmark.case import Case, result, results_table
from app.benchmark.compare import comparison
from app.benchmark.shape import Shape
from app.config import Precision
from app.config.commands import BenchConfig, chosen_operators
from app.config.published import published_tables
from app.config.runtime import require_graphs
from app.config.train import with_batch_of_all
from app.metrics.ceilings import Ceilings, higher, measure_ceilings, time_work
from app.record import provenance
from app.runtime import process_group
from app.runtime.platform import Runtime
from app.training import session
from common.cli import EXIT_DONE
from common.documents import plain_object
from common.errors import UserError
from common.files import write_atomically

log = logging.getLogger("clickwork")

NUM_DENSE = 13
DEFAULT_TABLES = "criteo_kaggle"


def main(config: BenchConfig) -> int:
    """Measure as configured, or compare what was measured; return the exit status."""
    if config.compare:
        print(comparison(config.compare))
        return EXIT_DONE
    with process_group.joined(config, process_group.READING) as runtime:
        require_graphs(config.runtime, runtime.device.type)
        shape = shape_of(config, runtime.world_size)
        log.info(
            "bench: %s, %d process(es) on %s, %d threads each",
            shape,
            runtime.world_size,
            runtime.platform.value,
            runtime.num_threads,
        )
        dtype = torch.bfloat16 if config.runtime.precision is Precision.bf16 else torch.float32
        ceilings = measure_ceilings(runtime.device, dtype, config.seconds, runtime.highest)
        if ceilings is None:
            raise UserError("runtime: too little free memory on the GPU to measure its limits; end what else uses it")
        timed = []
        for case in _cases(config, shape, runtime, dtype):
            min_runs = config.inference.least_runs if case.is_latency else None
            try:
                timing = time_work(case.work, runtime.device, config.seconds, runtime.highest, min_runs)
            except torch.OutOfMemoryError:
                if runtime.world_size > 1:
                    # The other processes wait in this case's collectives.
                    raise
                log.warning("bench: %s skipped: out of memory; give a smaller shape.batch_size", case.name)
                continue
            timed.append((case, timing))
            log.info("bench: %s %.3f ms", case.name, timed[-1][1].median * 1e3)
        ceilings = higher(ceilings, measure_ceilings(runtime.device, dtype, config.seconds, runtime.highest))
        if runtime.rank == 0:
            _report(config, shape, runtime, ceilings, [result(case, timing, ceilings) for case, timing in timed])
    return EXIT_DONE


def shape_of(config: BenchConfig, world_size: int) -> Shape:
    """Return the sizes at which to measure.

    Raises:
        UserError: lists have different lengths, or the processes cannot share a batch equally.
    """
    shape, train = config.shape, with_batch_of_all(config.train, world_size)
    if shape.batch_size is None and train.global_batch_size % world_size:
        raise UserError(
            f"train.global_batch_size={train.global_batch_size}: not divisible by the {world_size} processes"
        )
    published = published_tables(config.data.published_tables or DEFAULT_TABLES).rows.values()
    rows = shape.num_embeddings or [min(count, shape.most_rows) for count in published]
    bags = shape.bag_sizes
    if bags is None:
        expanded = config.data.multi_hot.bags()
        bags = list(expanded.sizes) if expanded is not None else [1] * len(rows)
    if len(bags) != len(rows):
        raise UserError(f"shape.bag_sizes: {len(bags)} of them for {len(rows)} tables; give one a table")
    return Shape(
        batch_size=shape.batch_size or train.global_batch_size // world_size,
        num_dense=shape.num_dense or NUM_DENSE,
        num_embeddings=tuple(rows),
        embedding_dim=config.model.embedding_dim,
        bag_sizes=tuple(bags),
    )


def _cases(config: BenchConfig, shape: Shape, runtime: Runtime, dtype: torch.dtype) -> Iterator[Case]:
    """Yield the chosen cases one by one, so that only one family's memory is allocated at a time."""
    selected = chosen_operators(config.operators)
    if config.operators is None:
        log.info("bench: inference is not among these; give 'operators=[inference]'")

    def is_selected(name: str) -> bool:
        return any(name.startswith(beginning) for beginning in selected)

    with ExitStack() as stack:
        root, manifest = stack.enter_context(input_path.dataset(shape))
        families: dict[str, Callable[[], Iterator[Case]]] = {
            "embedding_bag": lambda: operators.lookup_cases(shape, runtime.device),
            "interaction": lambda: operators.dense_cases(shape, config.model, runtime.device, dtype),
            "mlp": lambda: operators.dense_cases(shape, config.model, runtime.device, dtype),
            "optimizer_step": lambda: operators.optimizer_case(shape, config.model, runtime.device),
            "collective": lambda: operators.collective_cases(
                shape, operators.dense_parameters(shape, config.model), runtime.device
            ),
            "input": lambda: input_path.input_cases(shape, root, manifest, config.data, runtime.device),
            "step": lambda: steps.step_cases(shape, session.build(config, runtime, root, manifest)),
            "inference": lambda: steps.inference_cases(shape, config, runtime, root, manifest, is_selected),
        }
        for family, make in families.items():
            if not any(name.split("/")[0] == family for name in selected):
                continue
            if family == "collective" and runtime.world_size == 1:
                log.info("bench: collective: nothing to exchange in one process; give NPROC=2")
            try:
                yield from (case for case in make() if case.family == family and is_selected(case.name))
            except torch.OutOfMemoryError:
                if runtime.world_size > 1:
                    raise
                log.warning("bench: %s ends early: out of memory; give a smaller shape.batch_size", family)


def _report(
    config: BenchConfig, shape: Shape, runtime: Runtime, ceilings: Ceilings, results: list[dict[str, Any]]
) -> None:
    """Print the table; write the JSON, if requested."""
    document = {
        **plain_object(provenance.describe_run()),
        "shape": vars(shape),
        "model": {
            "interaction": config.model.interaction.value,
            "dense_arch": list(config.model.dense_arch),
            "over_arch": list(config.model.over_arch),
        },
        "world_size": runtime.world_size,
        "platform": runtime.platform.value,
        "num_threads": runtime.num_threads,
        "ceilings": ceilings._asdict(),
        "results": results,
    }
    print(results_table(results, ceilings))
    if config.out is not None:
        write_atomically(Path(config.out), (json.dumps(document, indent=1) + "\n").encode())
        log.info("bench: %s", config.out)
    else:
        log.info("bench: out=FILE.json keeps these figures, 'compare=[FILE.json,OTHER.json]' compares machines")
