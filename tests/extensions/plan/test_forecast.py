"""A plan as text: whatever its names and numbers, lines that fit, with everything in them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from torchrec.distributed.planner.stats import _get_sharding_type_abbr

from app.config.sharding import SHARDING_TYPES
from extensions.plan.command import (
    Forecast,
    ForecastFile,
    ForecastTable,
    RankCost,
    WhatIf,
    plan_lines,
    what_if_lines,
)
from extensions.plan.keys import PlanAppConfig
from tests.common.test_keys import OF_RUNS
from tests.key_limits import LIST, check_limits

WIDTH = 120
NAMES = st.text("abcxyz_019", min_size=1, max_size=150)
MS = st.floats(0, 1e4)
TYPES = st.sampled_from(SHARDING_TYPES)
COST = RankCost(rank=0, device_bytes=1, host_bytes=0, lookup_ms=1, communication_ms=2, total_ms=3)


def on_eight(topology: str, batch: int, **figures: Any) -> WhatIf:
    """On eight devices of one node."""
    return WhatIf(topology=topology, nodes=1, devices_per_node=8, world_size=8, global_batch_size=batch, **figures)


def tables(draw: st.DrawFn, world_size: int) -> dict[str, ForecastTable]:
    """Draw tables with up to six names, on any ranks."""
    return {
        name: ForecastTable(
            type=draw(TYPES),
            kernel=draw(st.sampled_from(["dense", "fused_uvm_caching"])),
            shards=[],
            cache_load_factor=None,
            ranks=draw(st.lists(st.integers(0, world_size - 1), min_size=1, max_size=world_size)),
            num_embeddings=draw(st.integers(1, 10**10)),
            embedding_dim=draw(st.integers(1, 1024)),
            bytes=draw(st.integers(0, 10**13)),
            lookup_ms=draw(MS),
            communication_ms=draw(MS),
            reason=draw(st.text("abc,; ", max_size=300)),
        )
        for name in draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    }


@st.composite
def plans(draw: st.DrawFn) -> ForecastFile:
    """Draw a plan for up to 40 processes."""
    world_size = draw(st.integers(1, 40))
    return ForecastFile(
        format=1,
        world_size=world_size,
        local_world_size=world_size,
        nodes=1,
        global_batch_size=8192,
        optimizer="rowwise_adagrad",
        tables=tables(draw, world_size),
        ranks=[COST],
        forecast=Forecast(fits=True, capacity_bytes=1 << 44, step_ms=draw(MS), headroom_bytes=1 << 43, imbalance=1.0),
        notes=draw(st.lists(st.text("abc ", max_size=300), max_size=2)),
    )


@pytest.mark.medium
@given(plans())
def test_lines_fit_and_have_every_table_and_rank(plan: ForecastFile) -> None:
    lines = plan_lines(plan, "mi300x", reasons=True)
    assert max(map(len, lines)) <= WIDTH
    text = " ".join(" ".join(lines).split())
    for name, table in plan.tables.items():
        ranks = list(table.ranks or [])
        assert name[:5] in text
        assert len(ranks) < 3 or len(set(ranks)) < len(ranks) or str(ranks[-1]) in text
        assert "".join((table.reason or "").split()) in "".join(text.split())
    table_of_plan = lines[2 : lines.index("", 2)]
    assert sum(any(kernel in line for kernel in ("dense", "fused")) for line in table_of_plan) == len(plan.tables)
    assert all(line in lines for line in plan_lines(plan, "mi300x"))


@given(NAMES, st.text("abc ", max_size=300), st.lists(TYPES, max_size=6))
def test_what_if_fits(topology: str, problem: str, types: list[str]) -> None:
    forecast = Forecast(fits=True, capacity_bytes=1 << 44, step_ms=1e4, headroom_bytes=1 << 43, imbalance=1.0)
    without = on_eight(topology, 10**6, forecast=None, problem=problem)
    lines = what_if_lines([replace(without, forecast=forecast, slowest=COST, types=", ".join(types)), without])
    assert max(map(len, lines)) <= WIDTH
    text = "".join("".join(lines).split())
    assert "".join(problem.split()) in text
    assert ",".join(map(_get_sharding_type_abbr, types)) in text
    assert all(f"{_get_sharding_type_abbr(name)}:{name}" in text for name in types)


def test_the_types_of_a_plan_take_one_line() -> None:
    """As in the plans of docs/plans.md, whose lines were twice as many when names stood in place of abbreviations."""
    forecast = Forecast(fits=True, capacity_bytes=175 << 30, step_ms=1.3, headroom_bytes=120 << 30, imbalance=1.0)
    types = "data_parallel 10, row_wise 1, table_wise 15"
    case = on_eight("mi300x", 65_536, forecast=forecast, slowest=COST, types=types)
    _, head, row, *notes, legend = what_if_lines([case])
    assert "  tables ms  " in head
    assert notes[0].startswith("times are of tables alone")
    assert row.endswith("  DP 10, RW 1, TW 15")
    assert legend == "DP: data_parallel, TW: table_wise, RW: row_wise"


def test_every_key_has_its_limits_and_a_meaning() -> None:
    check_limits(PlanAppConfig, {**OF_RUNS, **dict.fromkeys(("plan.batch_sizes", "plan.devices"), LIST)})
