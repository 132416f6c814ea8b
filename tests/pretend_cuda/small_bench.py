"""app.bench with ceilings measured at a CPU's sizes: at a GPU's they take the host minutes."""

import runpy

from app.metrics import ceilings

if __name__ == "__main__":
    ceilings.STREAM_BYTES["cuda"], ceilings.MATRIX_ROWS["cuda"] = 1 << 20, 64
    runpy.run_module("app.bench", run_name="__main__", alter_sys=True)
