"""The notebook of examples, executed: `python -m tests.clickwork.notebook` does so and keeps its outputs."""

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples/quickstart.ipynb"
FRAME = re.compile(r"<iframe.*?</iframe>", re.DOTALL)


def executed(directory: Path) -> Any:
    """The notebook after its cells were run in `directory`. Raises CellExecutionError where one fails."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    where = {"metadata": {"path": str(directory)}}
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources=where, coalesce_streams=True)
    client.execute(env=environment)
    return notebook


def without_frames(notebook: Any) -> Any:
    """The notebook without the pages that it shows, each 100 kB, which viewers of kept outputs do not run."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            if "text/html" in output.get("data", {}):
                output.data["text/html"] = FRAME.sub("", output.data["text/html"])
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return notebook


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        nbformat.write(without_frames(executed(Path(scratch))), NOTEBOOK)
