"""Print how many files of the product run from a CSV to a batch: `python tests/row_files.py`, in a checkout's root."""

import os
import random
import sys
import threading
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from types import FrameType

PACKAGES = ("app", "clickwork", "common", "data_prep", "extensions")


def main() -> None:
    """Prepare a small table and read a batch of it, and count the files whose functions are called."""
    sys.path.insert(0, os.getcwd())
    from app.config.data import DataConfig
    from app.data.split import SplitReader
    from common.compose import compose_config
    from data_prep.commands import COMMANDS
    from data_prep.dataset.format import load_manifest

    places, files = tuple(os.path.join(os.getcwd(), package, "") for package in PACKAGES), set[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        # Modules, comprehensions and generated methods have names in angle brackets.
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(places) and not code.co_name.startswith("<"):
            files.add(code.co_filename)

    with TemporaryDirectory() as directory:
        raw, schema = Path(directory) / "rows.csv", Path(directory) / "rows.yaml"
        draw = random.Random(0).randrange
        rows = [f"{draw(2)},{draw(90)},city {draw(30)},{draw(1000) / 100}" for _ in range(3000)]
        raw.write_text("\n".join(["label,age,city,price", *rows, ""]))
        schema.write_text("label: label\ndense: [age, price]\nsparse: [city]\n")
        command, preprocess = COMMANDS["preprocess"], resolve_name("data_prep.pipeline:preprocess")
        assert command.schema is not None
        for profile in (None, note):  # the first time kernels are compiled
            root = Path(directory) / f"dataset-{profile is None}"
            data = {"raw": raw, "schema": schema, "path": root, "workers": 1}
            typed = [f"data.{key}={value}" for key, value in data.items()]
            config = compose_config(resolve_name(command.schema), command.config_dir, typed, command.config)
            threading.setprofile(profile)
            sys.setprofile(profile)
            preprocess(config.data)
            reader = SplitReader(root, load_manifest(root), "train", DataConfig(), rank=0, world_size=1)
            next(reader.train_batches(64, 0, 0, 0))
            sys.setprofile(None)
    print(len(files))


main()
