"""Notes on the forecast of HSTU, the model of the extension `sequences`."""

from collections.abc import Mapping
from operator import attrgetter

from app.config import AppConfig
from app.model.embeddings import TableArch


def notes(config: AppConfig, tables: TableArch, sizes: Mapping[str, float], local_batch_size: int) -> list[str]:
    """State what the forecast assumes and leaves out. sizes: ids a bag by key."""
    shared = next(table for table in tables.tables if len(table.keys) > 1)  # the items', of histories and candidates
    around = sum(sizes[key] for table in tables.tables if len(table.keys) == 1 for key in table.keys)
    positions = around + sum(sizes[key] for key in shared.keys)
    gib = local_batch_size * positions * attrgetter("sequences.hstu.dim")(config) * 4 / 2**30
    return [
        f"every history is taken to have {sizes[shared.keys[0]]:,.0f} events; give their mean as "
        "sequences.history_length for mean times",
        "every id is a row that is looked up and sent, also one that a batch has already",
        f"attention, the dense layers and their memory are not estimated: {local_batch_size:,} samples of "
        f"{positions:,.0f} positions a device, {gib:.1f} GiB for each fp32 vector of sequences.hstu.dim that a "
        "layer keeps",
    ]
