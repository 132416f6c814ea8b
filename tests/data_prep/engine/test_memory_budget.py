"""The memory budget: what is planned within it, and that what it decides changes no byte."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from data_prep import job as memory_budget
from data_prep.config import chunk_size, resolve_rules
from data_prep.dataset.options import CRITEO
from data_prep.dataset.table_spec import Table
from data_prep.job import Job
from data_prep.sources.discover import resolve_sources
from tests.data_prep.conftest import config, prepare, sums, write_rows
from tests.data_prep.tables import paths
from tests.error_lines import refused


@pytest.mark.parametrize("encoding", ["vocabulary", "hash", "torchrec_fixed"])
@pytest.mark.parametrize("budget", [512, 1024, 2048, 16384, 600])
def test_processes_fit_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, budget: int) -> None:
    """Processes together keep to the key, or to the limit of a container; benchmarks measure what they do use."""
    write_rows(tmp_path, 10)
    is_limit = budget == 600
    keys = [f"data.path={tmp_path}", f"data.encoding={encoding}"]
    keys += ["data.memory_budget=2GiB", "data.chunk_bytes=32MiB"] if is_limit else [f"data.memory_budget={budget}MiB"]
    data = config(*keys)
    if is_limit:
        monkeypatch.setattr(memory_budget, "memory_limit", lambda: budget << 20)
    sources = tuple(resolve_sources(str(tmp_path / "rows.tsv")))
    job = Job(tmp_path, sources, CRITEO, resolve_rules(data, 1), chunk_size(data))
    data = replace(data, workers=16)
    room = (budget << 20) - memory_budget.PARENT_BYTES
    workers = memory_budget.num_workers(data, job, num_tasks=100)
    to_fit = memory_budget.worker_bytes(data, job, "fit") if encoding != "hash" else 0
    assert workers == 1 or workers * max(memory_budget.worker_bytes(data, job, "parse"), to_fit) <= room
    workers = memory_budget.workers_to_encode(data, job, workers, {})
    assert workers == 1 or workers * memory_budget.WORKER_BYTES <= room
    assert is_limit or 2 * 4 * memory_budget.window_rows(data) <= (budget << 20) // 16


def test_a_column_of_texts_that_cannot_be_sorted_in_the_budget_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path, 10)
    data = config(f"data.path={tmp_path}", "data.memory_budget=512MiB")
    table = Table(",", True, "y", (), ("big", "small"), None, ("y", "big", "small"))
    job = Job(tmp_path, (), table.schema, resolve_rules(data, 1), chunk_size(data), table)
    message = "data.memory_budget: too small for the 26,000,000 values of column big; raise it"
    refused(message, memory_budget.workers_to_encode, data, job, 1, {"big": 26_000_000, "small": 2})


@contextmanager
def few_files() -> Iterator[None]:
    """No more files may be open at a time than a few beyond those that are."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 16, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.medium
@pytest.mark.parametrize("is_table", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_units_keep_no_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_table: bool) -> None:
    overrides = [*write_rows(tmp_path, 200, seed=3)[:1], "data.split.method=random"]
    if is_table:
        rows = [f"{i % 2},{i % 7}|{i % 11}|{i}" for i in range(500)]
        (tmp_path / "rows").write_text("\n".join(["y,tags", *rows, ""]))
        overrides += paths(tmp_path, "label: y\nsparse: [{column: tags, separator: '|'}]\n", "rows")
        overrides.append("data.chunk_bytes=300")
    else:
        overrides += ["data.vocabulary_order=first_appearance", "data.chunk_bytes=1500"]
    prepare(*overrides, f"data.path={tmp_path}/usual")
    monkeypatch.setattr(memory_budget, "PART_BYTES", 1 << 12)  # so that runs are not read at once
    with few_files():
        prepare(*overrides, f"data.path={tmp_path}/few")
    assert sums(tmp_path / "few") == sums(tmp_path / "usual")
