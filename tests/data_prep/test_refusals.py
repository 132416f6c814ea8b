"""Whatever a command refuses, all files are as they were before: checks come before side effects."""

import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.data_prep import oracle
from tests.data_prep.conftest import prepare, write_rows
from tests.error_lines import refused

SYNTHETIC = "data.source=synthetic data.synthetic.rows=300 data.synthetic.max_cardinality=50"


def files(root: Path) -> dict[str, str]:
    paths = [path for path in sorted(root.rglob("*")) if path.is_file()]
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Days, files that are none, archives, datasets `out` of days and `generated`; no other process writes there."""
    directory = tmp_path_factory.mktemp("of_refusals")
    set_up(directory)
    return directory


def set_up(directory: Path) -> None:
    day = oracle.make_rows(60, seed=0)
    contents = {
        **dict.fromkeys(("days/day_0", "mixed/rows.tsv", "raw_inside/train/day_0"), day),
        "days/day_1": oracle.make_rows(60, seed=1),
        "empty": b"",
        "rows.png": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00",
        "rows.parquet": b"PAR1\x15\x04\x15\x10\n\x00\xff" * 9,
        "binary.gz": gzip.compress(b"\x00\x01\x02\n" * 9, mtime=0),
        "foreign/thesis.txt": b"years of work",
        "mixed/sales.csv": b"keep",
        "other/val/notes.txt": b"keep",
        **{f"{name}.gz": damage(gzip.compress(day)) for name, (damage, _) in BAD_GZIP.items()},
    }
    for name, content in contents.items():
        (directory / name).parent.mkdir(exist_ok=True, parents=True)
        (directory / name).write_bytes(content)
    for name, keys in MADE.items():
        words = [key.replace("=days", f"={directory}/days") for key in keys.split()]
        prepare(*words, f"data.path={directory}/{name}")


BAD_GZIP: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "truncated": (lambda content: content[: len(content) * 2 // 3], "truncated gzip"),
    "no_trailer": (lambda content: content[:-4], "truncated gzip"),
    "damaged": (lambda content: content[:2000] + bytes(b ^ 85 for b in content[2000:2020]) + content[2020:], "damaged"),
    "wrong_sum": (lambda content: content[:-8] + bytes(4) + content[-4:], "damaged gzip"),
    "garbage_behind": (lambda content: content + b"garbage " * 10, "damaged gzip"),
    "not_gzip": (lambda content: b"plain text", "not a gzip file"),
    "nothing_inside": (lambda content: gzip.compress(b""), "no rows"),
}
MADE = {"out": "data.raw=days", "generated": SYNTHETIC}
RANDOM = "data.source=random data.random.rows=3000 data.random.eval_rows=500 data.random.tables=[50,7,1,100000]"
DAYS = "data.source=criteo_1tb"
NO_EFFECT = "has no effect|does not leave it open"
FOREIGN = "files that are not a dataset's"
ANOTHER = "holds another dataset"
# What is typed, where data.raw=days and data.path=new unless it says otherwise; what its refusal has.
PREPARATION: list[tuple[str, str]] = [
    # Keys and choices.
    *((f"data.{key}", NO_EFFECT) for key in ("split.seed=3", "split.held_out=0.5", "sampling.seed=3", "days=[1]")),
    ("data.encoding=dlrm_kaggle data.split.held_out=0.5", NO_EFFECT),
    ("data.synthetic.rows=10", NO_EFFECT),
    ("data.encoding=amd_blog data.split.method=random", "data.split.method"),
    *(
        (f"data.{key}", f"data.{key.split('=')[0]}")
        for key in ("memory_budget=1MiB", "memory_budget=lots", "path=null")
    ),
    # Raw files.
    ("data.raw=null", "data.raw=None"),
    ("data.raw=absent.tsv", "absent.tsv: no such file"),
    ("data.raw=empty", "empty: empty file"),
    ("data.raw=days/day_0 data.path=days/day_0/out", "day_0"),
    ("data.raw=days data.path=days/.", FOREIGN),
    ("data.raw=raw_inside/train/day_0 data.path=raw_inside", "lies where data.path="),
    ("data.raw=[days/day_0,days/../days/day_0]", r"name each once in data\.raw"),
    *((f"data.raw={name}", f"{name}: row 1: not text") for name in ("rows.png", "rows.parquet", "binary.gz")),
    *((f"data.raw={name}.gz", f"{name}.gz: .*{message}") for name, (_, message) in BAD_GZIP.items()),
    # Published days: nothing is fetched for them.
    (f"{DAYS} data.days=[0,0]", r"data\.days=\[0, 0\]: give different days, from 0 to 23"),
    (f"{DAYS} data.remote.sha256={{day_0.gz:abc}}", "abc is not a SHA-256"),
    (f"{DAYS} data.remote.sha256={{day_0:{'a' * 64}}}", "day_0: no such file is fetched"),
    (f"{DAYS} data.remote.mirrors=['http://x/rows.gz']", r"http://x/rows\.gz: the same file for every day"),
    # Generated rows.
    (f"{RANDOM} data.random.bag_sizes=[1,2]", "one for each of 4 features"),
    # What is at data.path.
    ("data.path=other", FOREIGN),
    ("data.path=mixed", FOREIGN),
    (f"data.path=foreign {SYNTHETIC}", FOREIGN),
    (f"data.path=out {SYNTHETIC}", ANOTHER),
    ("data.path=out data.raw=foreign/thesis.txt data.overwrite=true", "row 1"),
    (f"data.path=generated {SYNTHETIC} data.synthetic.rows=400", r"synthetic\.rows is 300 there, 400 here"),
]


@pytest.mark.medium
@pytest.mark.parametrize(("keys", "message"), PREPARATION, ids=lambda each: each[:70])
def test_files_are_as_they_were(state: Path, monkeypatch: pytest.MonkeyPatch, keys: str, message: str) -> None:
    monkeypatch.chdir(state)
    usual = {} if "data.source=" in keys else {"data.raw": "days"}
    words = usual | {"data.path": "new"} | dict(word.split("=", 1) for word in keys.split())
    before = files(state)
    refused(message, prepare, *(f"{key}={value}" for key, value in words.items()))
    assert files(state) == before


def test_too_many_rows_to_shuffle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_prep.job.SORTED_BYTES", 1 << 26)
    message = r"MiB are too few to shuffle about \d+ rows; give data\.memory_budget=\d+MiB"
    refused(message, prepare, *write_rows(tmp_path), "data.encoding=torchrec_fixed")
    prepare(*write_rows(tmp_path), "data.encoding=hash", "data.max_ind_range=9")


def test_a_full_disk_leaves_another_job_s_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, _ = write_rows(tmp_path)
    work = tmp_path / "new/.work/another"
    (work / "chunks").mkdir(parents=True)
    (work / "chunks/00000-00000.parsed.json").write_text("{}")
    before = files(tmp_path)
    monkeypatch.setattr("common.files.shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    for name in ("new", "none"):
        refused(r"about \d.* .B needed for the dataset, 1\.0 kB free", prepare, raw, f"data.path={tmp_path / name}")
    assert {name for name in files(tmp_path) if not name.endswith("lock")} == set(before)
    assert not (tmp_path / "none").exists()
