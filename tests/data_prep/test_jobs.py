"""Jobs: what they write, resume and refuse, in pieces of which size they work, and killed again and again."""

import fcntl
import functools
import gzip
import hashlib
import importlib
import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from data_prep import job, pipeline
from data_prep.config import DataConfig
from data_prep.dataset.format import load_manifest
from data_prep.executor import Executor
from data_prep.pipeline import preprocess
from data_prep.stages import parse
from data_prep.stages import write as gather
from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import (
    REPOSITORY,
    SPLITS,
    Capture,
    config,
    load_rows,
    load_split,
    prepare,
    run,
    sums,
    write_rows,
)
from tests.data_prep.mirror import Mirror
from tests.data_prep.tables import write
from tests.error_lines import refused
from tests.forks import run_module


def require_rows(root: Path, text: bytes) -> None:
    """The dataset is that of these rows by the defaults."""
    labels, dense, sparse = oracle.parse(text)
    counts = oracle.seventh(len(labels))
    arrays = (labels, oracle.encode_dense(dense), oracle.encode_vocabulary(sparse, counts[0]))
    for split, stop, count in zip(SPLITS, np.cumsum(counts), counts, strict=True):
        for actual, expected in zip(load_split(root, split), arrays, strict=True):
            np.testing.assert_array_equal(actual, expected[stop - count : stop])
    verify_dataset(root)


def test_rows_of_criteo(tmp_path: Path, rows: Path) -> None:
    prepare(f"data.raw={rows}", f"data.path={tmp_path}/out")
    require_rows(tmp_path / "out", rows.read_bytes())


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_tiny_inputs(tmp_path: Path, rows: int) -> None:
    prepared = prepare(*write_rows(tmp_path, rows, seed=rows))
    require_rows(tmp_path / "out", oracle.make_rows(rows, seed=rows))
    assert all((split.label_rate is None) == (split.rows == 0) for split in prepared.splits.values())


@pytest.mark.medium
def test_done_is_done_and_other_parameters_are_refused(tmp_path: Path, capsys: Capture) -> None:
    arguments = write_rows(tmp_path, 50)
    first = prepare(*arguments)
    mtime = (tmp_path / "out" / "manifest.json").stat().st_mtime_ns
    assert prepare(*arguments) == first
    assert "already done" in capsys.readouterr().err
    assert (tmp_path / "out" / "manifest.json").stat().st_mtime_ns == mtime
    (tmp_path / "rows.tsv").write_bytes((tmp_path / "rows.tsv").read_bytes())  # touched, it is the same source
    prepare(*arguments)
    assert "already done" in capsys.readouterr().err
    refused("frequency_threshold is 1 there, 2 here", prepare, *arguments, "data.frequency_threshold=2")
    before = sums(tmp_path / "out")
    write_rows(tmp_path, 50, seed=1)
    refused("made from other raw files", prepare, *arguments)
    assert sums(tmp_path / "out") == before
    assert not (tmp_path / "out" / ".work").exists()
    second = prepare(*arguments, "data.overwrite=true")
    assert second.digest != first.digest
    verify_dataset(tmp_path / "out")


def test_another_job_at_work_is_respected(tmp_path: Path) -> None:
    (tmp_path / "out/.work").mkdir(parents=True)
    with open(tmp_path / "out/.work/lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused("another job is writing here", prepare, *write_rows(tmp_path))


Constants = list[tuple[ModuleType | type, str, Any]]
PARTS: Constants = [(gather, "WINDOW_ROWS", 190), (gather, "PART_ROWS", 1)]
PARTS += [(job, f"{name}_BLOCK_ROWS", 37) for name in ("MIN", "MAX")]
# The keys, and constants that are others.
PIECES: list[tuple[str, Constants]] = [
    ("data.encoding=amd_blog", PARTS),
    ("data.encoding=torchrec_fixed", PARTS),
    ("data.schema=schema.yaml data.raw=rows.csv", [(job, "MIN_OWN_CHUNK_BYTES", 700)]),
    # Val has as many rows as one chunk of its shard: the halves of two.
    (
        f"data.schema=alike.yaml data.raw=alike.csv data.split.method=fraction data.split.held_out={40 / 68} "
        "data.chunk_bytes=400",
        [(job, "MIN_OWN_CHUNK_BYTES", 100)],
    ),
]


@pytest.mark.medium
@pytest.mark.parametrize(("keys", "constants"), PIECES)
def test_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str, constants: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for day in range(2):
        (tmp_path / f"day_{day}").write_bytes(oracle.make_rows(450, seed=day, values=3000))
    tags = [["x|y", "z", ""][i % 3] for i in range(300)]
    write(tmp_path / "rows.csv", {"label": [0, 1] * 150, "user": [f"u{i % 150}" for i in range(300)], "tags": tags})
    (tmp_path / "schema.yaml").write_text("label: label\nsparse: [user, {column: tags, separator: '|'}]\n")
    (tmp_path / "alike.csv").write_text("label,item\n" + "".join(f"{int(i % 3 == 0)},{i:02}\n" for i in range(68)))
    (tmp_path / "alike.yaml").write_text("label: label\nsparse: [item]\n")
    words = ["data.raw=day_?", "data.chunk_bytes=40000", *keys.split()]
    whole = prepare(*words, "data.path=whole")
    for module, name, value in constants:
        monkeypatch.setattr(module, name, value)
    pieces = prepare(*words, "data.path=pieces")
    assert sums(tmp_path / "pieces") == sums(tmp_path / "whole")
    assert pieces.digest == whole.digest
    assert pieces.extra["out_of_vocabulary"] == whole.extra["out_of_vocabulary"]
    verify_dataset(tmp_path / "pieces")


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("days")
    for day in range(2):
        (directory / f"day_{day}").write_bytes(oracle.make_rows(1500, seed=day))
    return directory


def keys_of(directory: Path, days: Path, out: str = "out", chunk_bytes: int = 90_000) -> DataConfig:
    return config(f"data.raw={days}", f"data.path={directory}/{out}", f"data.chunk_bytes={chunk_bytes}")


def stop(*_: object) -> None:
    raise KeyboardInterrupt


def acting(number: int, act: Callable[[], object], calls: list[object]) -> Callable[..., Any]:
    """`_parse_lines`, which notes its calls, and begins the one of a number by `act`."""
    original = parse._parse_lines

    def parse_lines(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == number:
            act()
        return original(*arguments)

    return parse_lines


@pytest.mark.medium
def test_a_damaged_unit_is_done_again(tmp_path: Path, days: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preprocess(keys_of(tmp_path, days, "whole"))
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "moves_to_dataset", stop)
        with pytest.raises(KeyboardInterrupt):
            preprocess(keys_of(tmp_path, days))
    [work] = (path for path in (tmp_path / "out/.work").iterdir() if path.is_dir())
    for name in ("chunks/00000-00000.dense.npy", "chunks/00000-00001.columns", "gathered/train-00000.sparse.npy"):
        content = bytearray((work / name).read_bytes())
        content[-1] ^= 1
        (work / name).write_bytes(content)
    preprocess(keys_of(tmp_path, days))
    assert sums(tmp_path / "out") == sums(tmp_path / "whole")


def stop_in_the_third_unit() -> None:
    vars(parse)["_parse_lines"] = acting(3, partial(os.kill, os.getpid(), signal.SIGTERM), [])


@pytest.mark.slow("processes")
def test_a_signal_stops_the_job_resumably(tmp_path: Path, days: Path) -> None:
    arguments = [f"data.raw={days}", f"data.path={tmp_path}/out", "data.chunk_bytes=5000", "data.workers=1"]
    stopped = run_module("data_prep", *arguments, cwd=REPOSITORY, prepare=stop_in_the_third_unit)
    errors = stopped.stderr
    assert stopped.returncode == 75, errors
    assert "Traceback" not in errors
    assert len(list((tmp_path / "out/.work").glob("*/chunks/*.parsed.json"))) in (2, 3)
    assert errors.strip().splitlines()[-1] == "SIGTERM: stopped; run the same command again to resume"
    assert not (tmp_path / "out" / "manifest.json").exists()
    final = run(*arguments)
    assert final.returncode == 0, final.stderr
    assert "resuming where the last job stopped" in final.stderr


def rewritten(path: Path, content: bytes) -> None:
    """Another file of the same size and time of writing, as `tar --mtime` leaves one."""
    status = path.stat()
    assert len(content) == status.st_size
    path.unlink()
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.medium
@pytest.mark.parametrize("moment", ["resumed", "finished", "while it is read"])
def test_a_file_of_equal_size_and_time_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    day, content = tmp_path / "day_0", oracle.make_rows(300, seed=0)
    other = b"".join(b"%d" % (line[:1] == b"0") + line[1:] for line in content.splitlines(keepends=True))
    day.write_bytes(content)
    job = keys_of(tmp_path, day, chunk_bytes=20_000)
    if moment == "while it is read":
        monkeypatch.setattr(parse, "_parse_lines", acting(2, partial(rewritten, day, other), []))
        refused("changed while it was read; run the same command again", preprocess, job)
        assert not (tmp_path / "out/manifest.json").exists()
    elif moment == "finished":
        preprocess(job)
        rewritten(day, other)
        refused("made from other raw files", preprocess, job)
        rewritten(day, content)
        preprocess(job)  # the same again, by its checksum
        return
    else:
        monkeypatch.setattr(parse, "_parse_lines", acting(3, stop, []))
        with pytest.raises(KeyboardInterrupt):
            preprocess(job)
        rewritten(day, other)
    manifest = preprocess(job)
    assert manifest.sources[0]["sha256"] == hashlib.sha256(other).hexdigest()
    assert load_rows(tmp_path / "out")[0].tolist() == oracle.parse(other)[0].tolist()


class Kind(NamedTuple):
    """A kind of job.

    write: what makes its raw files in a directory; keys: of its command, in that directory; packed: those of the job
    that is killed, where its files are packed; workers: 1 is killed after drawn CPU times, more at drawn results.
    """

    write: Callable[[Path], object]
    keys: str
    packed: str = ""
    workers: int = 2


def write_days(directory: Path) -> None:
    for day in range(2):
        content = oracle.make_rows(600, seed=day)
        (directory / f"day_{day}").write_bytes(content)
        (directory / f"day_{day}.gz").write_bytes(gzip.compress(content, mtime=0))


def write_tables(directory: Path) -> None:
    for number, split in enumerate(SPLITS):
        draw = random.Random(number)
        users = ["b", "a", "é", "x y", "07", f"only in {split}"]
        columns: dict[str, list[Any]] = {"label": [draw.randint(0, 1) for _ in range(400)]}
        columns["price"] = [draw.randint(-9, 99) / 4 for _ in range(400)]
        columns["user"] = [draw.choice(users) for _ in range(400)]
        columns["tags"] = ["|".join(draw.sample("abcdefgh", draw.randint(0, 3))) for _ in range(400)]
        content = write(directory / f"{split}.csv", columns).read_bytes()
        (directory / f"{split}.csv.gz").write_bytes(gzip.compress(content, mtime=0))
        write(directory / f"{split}.parquet", columns, row_group_size=70)
    features = "dense: [{column: price, transform: quantile}]\nsparse: [user, {column: tags, separator: '|'}]\n"
    (directory / "schema.yaml").write_text(f"label: label\n{features}")


IN_CHUNKS = "data.chunk_bytes=9000"
OF_DAYS = f"data.raw={{0}}/day_? {IN_CHUNKS}"
SHUFFLED = "data.encoding=torchrec_fixed data.max_ind_range=99"
FETCHED = "data.source=criteo_1tb data.days=[0,1] data.raw=null"
TABLE = "data.raw={0}/train.csv data.schema={0}/schema.yaml data.chunk_bytes=2000"
GIVEN = "data.train={0}/train.csv data.test={0}/test.csv data.schema={0}/schema.yaml data.chunk_bytes=2000"
BY_USER = "data.split.method=group data.split.column=user data.split.held_out=0.5"
KINDS = {
    "vocabulary": Kind(write_days, OF_DAYS, workers=1),
    "shuffled": Kind(write_days, f"data.raw={{0}}/day_0 {IN_CHUNKS} {SHUFFLED}", workers=1),
    "ranges and other orders": Kind(write_days, f"{OF_DAYS} data.encoding=dlrm_kaggle", workers=3),
    "scikit-learn's split": Kind(write_days, f"{OF_DAYS} data.encoding=amd_blog"),
    "file by file": Kind(
        write_days, "data.raw={0}/day_? data.encoding=hash data.max_ind_range=40 data.chunk_bytes=50000"
    ),
    "packed": Kind(write_days, OF_DAYS, "data.raw={0}/day_?.gz"),
    "fetched": Kind(write_days, OF_DAYS, FETCHED),
    "given splits of Criteo's rows": Kind(
        write_days, f"data.train={{0}}/day_0 data.val={{0}}/day_1 data.sampling.negative_drop_rate=0.5 {IN_CHUNKS}"
    ),
    "given splits": Kind(write_tables, f"{GIVEN} data.val={{0}}/val.csv", "data.val={0}/val.csv.gz"),
    "random split of a table": Kind(
        write_tables, f"{TABLE} data.split.method=random data.vocabulary_order=first_appearance", workers=1
    ),
    "split by time": Kind(write_tables, f"{TABLE} data.split.method=time data.split.column=price"),
    "split by user": Kind(write_tables, f"{GIVEN} {BY_USER}"),
    "split by label": Kind(write_tables, f"{TABLE} data.split.method=stratified", workers=1),
    "Parquet": Kind(write_tables, "data.raw={0}/train.parquet data.schema={0}/schema.yaml data.chunk_bytes=1000"),
}


def at_work(module: str, act: Callable[[], object], patch: Callable[[Any, str, Any], object] = setattr) -> None:
    """Have `act` called when a job's own work begins, which a later start resumes."""
    own = importlib.import_module(module)
    begin = vars(own)["begin_or_resume"]
    patch(own, "begin_or_resume", lambda *each: (begin(*each), act()))


def doom(module: str, seconds: float | None, results: int) -> None:
    """Have this process killed after so much CPU time of work or so many results, whatever its workers are at then."""
    if seconds is not None:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        at_work(module, functools.partial(signal.setitimer, signal.ITIMER_PROF, seconds))
        return
    take, count = Executor._collect, []

    def result(executor: Any, future: Any) -> Any:
        count.append(1)
        if len(count) == results:
            os.kill(os.getpid(), signal.SIGKILL)
        return take(executor, future)

    setattr(Executor, "_collect", result)  # noqa: B010


@pytest.mark.slow("examples")
@pytest.mark.parametrize("name", KINDS)
def test_killed_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror: Mirror, name: str) -> None:
    kill_again_and_again(name, KINDS[name], pipeline.__name__, tmp_path, monkeypatch, mirror)


def kill_again_and_again(
    name: str, kind: Kind, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror: Mirror
) -> None:
    """Kill a job, whose own work `module` begins, at drawn moments; its dataset must be an undisturbed job's."""
    draw, begins = random.Random(name), list[float]()
    kind.write(tmp_path)
    keys = kind.keys.format(tmp_path).split()
    if kind.workers == 1:
        preprocess(config(*keys, f"data.path={tmp_path}/first"))  # it compiles
    with monkeypatch.context() as patch:
        at_work(module, lambda: begins.append(time.process_time()), patch.setattr)
        preprocess(config(*keys, f"data.path={tmp_path}/whole"))
    seconds = time.process_time() - begins[0]

    keys += [*kind.packed.format(tmp_path).split(), f"data.path={tmp_path}/killed", f"data.workers={kind.workers}"]
    if name == "fetched":
        mirror.content |= {f"day_{day}.gz": (tmp_path / f"day_{day}.gz").read_bytes() for day in range(2)}
        keys += [f"data.remote.mirrors=['{mirror.url('good')}/day_{{day}}.gz']"]
    num_kills = 0
    for _ in range(6 if kind.workers == 1 else 3):
        share = draw.uniform(0, 0.2) * seconds
        prepare = functools.partial(doom, module, share if kind.workers == 1 else None, draw.randint(2, 6))
        killed = run_module("data_prep", *keys, cwd=REPOSITORY, prepare=prepare)
        assert killed.returncode in (-signal.SIGKILL, -signal.SIGPROF, 0), killed.stderr
        num_kills += killed.returncode != 0
        is_whole = (tmp_path / "killed/manifest.json").exists()  # killed while it cleared its work
        if not killed.returncode or is_whole:
            break
    assert num_kills > 1
    has_work = not is_whole and any((tmp_path / "killed/.work").glob("*/chunks/*.json"))
    final = run(*keys)
    assert final.returncode == 0, final.stderr
    if has_work:
        assert "resuming where the last job stopped" in final.stderr
    assert sums(tmp_path / "killed") == sums(tmp_path / "whole")
    assert not (tmp_path / "killed/.work").exists()
    whole, manifest = load_manifest(tmp_path / "whole"), load_manifest(tmp_path / "killed")
    assert (manifest.digest == whole.digest) == (not kind.packed)  # it holds the raw files' sums, too
    assert manifest.extra.get("source_md5") == whole.extra.get("source_md5") or kind.packed
    for key in ("misleading", "unseen_in_train", "out_of_vocabulary", "anchors"):
        assert manifest.extra.get(key) == whole.extra.get(key) or kind.packed
    verify_dataset(tmp_path / "killed")
