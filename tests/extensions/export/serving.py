"""Exported directories in a process that finds none of our modules or libraries but three."""

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

REFUSED = ("app", "common", "data_prep", "extensions", "fbgemm_gpu", "msgspec", "numba", "onnx", "torch", "torchrec")
PROGRAM = """
import importlib.abc, json, sys
from pathlib import Path
from typing import Any

REFUSED = {refused!r}


class Guard(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in REFUSED:
            raise ModuleNotFoundError(name)


{row_keys}

sys.meta_path.insert(0, Guard())
sys.path.insert(0, sys.argv[1])
import score

scorer, results = score.Scorer(threads=1), []
for name in sys.argv[2:]:
    try:
        logits, scores, keys = [], [], []
        for columns, numbers in score.read_rows(Path(name), scorer):
            inputs = scorer.encode(columns, name, numbers)
            logits += scorer.run(inputs, scorer._session.get_outputs()[0].name).tolist()
            scores += scorer.run(inputs).tolist()
            keys += row_keys(inputs)
        results.append(dict(logits=logits, scores=scores, keys=keys))
    except score.UserError as error:
        results.append(dict(error=str(error)))
print(json.dumps(results))
"""


def row_keys(inputs: "dict[str, Any]") -> "list[str]":
    """A name for each row of the model's inputs, the same for the same inputs."""
    arrays = [inputs[name] for name in sorted(inputs)]
    return [b"".join(array[row].tobytes() for array in arrays).hex() for row in range(len(arrays[0]))]


def score_files(
    directory: Path, *files: Path, python: tuple[str, ...] = (sys.executable, "-I")
) -> list[dict[str, Any]]:
    """Logits and scores of each file's rows, or the error that refuses it."""
    program = PROGRAM.format(refused=REFUSED, row_keys=inspect.getsource(row_keys))
    command = [*python, "-c", program, str(directory), *map(str, files)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    results: list[dict[str, Any]] = json.loads(process.stdout)
    return results
