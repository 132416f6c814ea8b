"""Checks of the raw files that are possible only once they have been read."""

from pathlib import Path

from common.errors import UserError
from data_prep.engine.job import Job, UnitRecord
from data_prep.io.atomic import FileDigest
from data_prep.sources.checksums import refuse_other


def refuse_no_train_rows(job: Job, rows: dict[str, int]) -> None:
    """Raises UserError where all rows are held out or left out."""
    if not sum(rows.values()):
        raise UserError("data.sampling.negative_drop_rate: no row is left; give a lower rate")
    if not rows["train"]:
        method = job.rules.split.value
        raise UserError(
            f"data.split: all {sum(rows.values())} rows are held out (method {method}), none is left to train on; "
            "give more rows, or a smaller data.split.held_out"
        )


def refuse_changed(job: Job) -> None:
    """Raises UserError for a file that changed while it was read."""
    for source in job.sources:
        now = Path(source.path).stat()
        if (now.st_size, now.st_mtime_ns) != (source.bytes, source.mtime_ns):
            raise UserError(f"{source.path}: changed while it was read; run the same command again")


def refuse_empty(job: Job, records: list[UnitRecord]) -> None:
    """Raises UserError for a file without rows, as a compressed file may be."""
    filled = {record.source for record in records if record.rows}
    for index, source in enumerate(job.sources):
        if index not in filled:
            raise UserError(f"{source.path}: no rows in it; get it again, or leave it out of data.raw")


def refuse_wrong_sums(job: Job, digests: list[FileDigest]) -> None:
    """Raises UserError for a file whose checksum is not the known one."""
    if job.known_sums:
        for source, known, digest in zip(job.sources, job.known_sums, digests, strict=True):
            refuse_other(Path(source.path), known, digest)
