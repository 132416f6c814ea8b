"""Jobs of every kind, killed at drawn moments, again and again, end with the bytes of one that nobody disturbs.

The latter has one worker and raw files that are not packed; so neither of these changes a byte.
"""

import functools
import gzip
import importlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from data_prep import pipeline
from data_prep.dataset.format import load_manifest
from data_prep.executor import Executor
from data_prep.pipeline import preprocess
from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import REPOSITORY, SPLITS, config, run, sums
from tests.data_prep.mirror import Mirror
from tests.data_prep.tables import write
from tests.forks import run_module


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
    """Rows of a table in CSV, packed, and in Parquet, for each split."""
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


SMALL = "data.chunk_bytes=9000"
DAYS = f"data.raw={{0}}/day_? {SMALL}"
SHUFFLED = "data.encoding=torchrec_fixed data.max_ind_range=99"
MULTI_HOT = "data.multi_hot.sizes=mlperf_v2"
FETCHED = "data.source=criteo_1tb data.days=[0,1] data.raw=null"
TABLE = "data.raw={0}/train.csv data.schema={0}/schema.yaml data.chunk_bytes=2000"
GIVEN = "data.train={0}/train.csv data.test={0}/test.csv data.schema={0}/schema.yaml data.chunk_bytes=2000"
BY_USER = "data.split.method=group data.split.column=user data.split.held_out=0.5"
KINDS = {
    "vocabulary": Kind(write_days, DAYS, workers=1),
    "shuffled and multi-hot": Kind(write_days, f"data.raw={{0}}/day_0 {SMALL} {SHUFFLED} {MULTI_HOT}", workers=1),
    "ranges and other orders": Kind(write_days, f"{DAYS} data.encoding=dlrm_kaggle", workers=3),
    "scikit-learn's split": Kind(write_days, f"{DAYS} data.encoding=amd_blog"),
    "file by file": Kind(
        write_days, f"data.raw={{0}}/day_? data.encoding=hash data.max_ind_range=40 {MULTI_HOT} data.chunk_bytes=50000"
    ),
    "packed": Kind(write_days, DAYS, "data.raw={0}/day_?.gz"),
    "fetched": Kind(write_days, DAYS, FETCHED),
    "given splits of Criteo's rows": Kind(
        write_days, f"data.train={{0}}/day_0 data.val={{0}}/day_1 data.sampling.negative_drop_rate=0.5 {SMALL}"
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
    begin = vars(own)["keep_or_discard_work"]
    patch(own, "keep_or_discard_work", lambda *each: (begin(*each), act()))


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
    has_work = not is_whole and any((tmp_path / "killed/.work/chunks").glob("*.json"))
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
