"""What the processor says of itself, and that torch's products run on it."""

import subprocess
import sys
from pathlib import Path

import pytest

from common.machine import _bytes_of_tiles, announces_missing_tiles

CPUID = """
#include <cpuid.h>
#include <stdio.h>
int main() { unsigned a, b, c, d; __cpuid_count(0x1d, 1, a, b, c, d); printf("%u", a & 0xffff); }
"""
PRODUCTS = """
import app, torch
from app.config.train import LARGE_BATCH
from app.model.layers import mlp
for precision in (torch.float32, torch.bfloat16):
    for rows, inputs, outputs in ((64, 16, 32), (LARGE_BATCH, 5, 48), (LARGE_BATCH, 512, 256)):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision is torch.bfloat16):
            mlp(inputs, [outputs], True)(torch.ones(rows, inputs)).sum().backward()
"""


def test_bytes_of_tiles_are_those_that_gcc_reads(tmp_path: Path) -> None:
    (tmp_path / "cpuid.c").write_text(CPUID)
    subprocess.run(["gcc", "cpuid.c", "-o", "cpuid"], cwd=tmp_path, check=True)
    assert str(_bytes_of_tiles()) == subprocess.check_output([tmp_path / "cpuid"], text=True)


@pytest.mark.slow("tool")
def test_products_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """In fp32 and bf16; without `app` they fail or die of SIGILL on a machine that announces missing tiles."""
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    subprocess.run([sys.executable, "-c", PRODUCTS], check=True)


@pytest.mark.parametrize("flags", ["fpu avx512f amx_bf16 amx_tiles", ""])
def test_a_processor_without_amx_announces_nothing(flags: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(f"model name: any\nflags\t\t: {flags}\n")
    assert not announces_missing_tiles(tmp_path / "cpuinfo")
    assert not announces_missing_tiles(tmp_path / "none")


def test_tiles_that_are_announced_are_looked_for(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu amx_tile\n")
    assert announces_missing_tiles(tmp_path / "cpuinfo") == (not _bytes_of_tiles())
