"""Stack distances against a list, hit rates against a cache, generated traces against the profiles they come from."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import ks_2samp

from app.commands import COMMANDS
from common.command import load
from common.compose import compose_config, plain_values
from common.errors import UserError
from common.help import key_table
from data_prep.dataset.format import load_manifest
from data_prep.verify import verify_dataset
from extensions.locality.accesses import profile_accesses, read_text_trace
from extensions.locality.histogram import (
    BIN_STARTS,
    NUM_BINS,
    Profiler,
    TableProfile,
    bins_of,
    distance_between,
    load_profiles,
    save_profiles,
)
from extensions.locality.keys import CompareConfig, GenerateConfig, ProfileConfig, TraceConfig
from extensions.locality.sampler import AccessGenerator, share_used_before, warn_of_length
from extensions.locality.stack_distance import LruStack
from tests.data_prep.conftest import load_split, prepare, sums
from tests.error_lines import refused
from tests.key_limits import DIFFICULTY, INSIDE, ONE, ZERO, check_limits
from tests.oracles.generated import hit_rates, stack_distances


def zipf(size: int, count: int, exponent: float = 1.1, seed: int = 0) -> NDArray[np.int64]:
    uniform = np.random.default_rng(seed).random(count)
    power = 1 - exponent
    return np.minimum((((size + 1.0) ** power - 1) * uniform + 1) ** (1 / power), size).astype(np.int32) - 1


def moving(size: int, count: int) -> NDArray[np.int64]:
    """Ids of a working set that moves on."""
    return (zipf(size // 20, count, 1.2) + np.arange(count) // (count // 50) * (size // 100)) % size


TRACES = {
    "zipf": (20_000, zipf(20_000, 100_000)),
    "uniform": (5_000, np.random.default_rng(0).integers(0, 5_000, 100_000)),
    "moving": (10_000, moving(10_000, 100_000)),
    "loop": (7_000, np.arange(60_000) % 7_000),
    "three ids": (3, np.random.default_rng(1).integers(0, 3, 9_000)),
}


def profiled(size: int, ids: NDArray[Any]) -> TableProfile:
    profiler = Profiler(size)
    for piece in np.array_split(ids, 3):
        profiler.feed(piece)
    return profiler.profile


@pytest.mark.parametrize("name", ["zipf", "three ids"])
def test_distances_beyond_one_bitmap(name: str) -> None:
    """So many accesses that slots are used up and the ids move to the front, again and again."""
    size, ids = TRACES[name]
    ids = ids[:12_000]
    distances = [-1 if each is None else each for each in stack_distances(ids.tolist())]
    assert LruStack(size).use(ids).tolist() == distances


@pytest.mark.parametrize("size", [1, 50, 255, 3072])
def test_hit_rates_are_those_of_a_cache(size: int) -> None:
    rows, ids = TRACES["zipf"][0], TRACES["zipf"][1][:12_000]
    place = int(np.searchsorted(BIN_STARTS[1:], size))
    assert BIN_STARTS[1:][place] == size
    expected = hit_rates(stack_distances(ids.tolist()), size)[-1]
    assert profiled(rows, ids).hit_rates()[place] == pytest.approx(expected)


def test_bins_are_narrow_and_cover_all() -> None:
    numbers = np.array([0, 255, 256, 257, 258, 511, 512, 515, 10**6, 2**39])
    bins = bins_of(numbers)
    assert (np.diff(BIN_STARTS) > 0).all()
    assert len(BIN_STARTS) == NUM_BINS + 1
    assert (BIN_STARTS[bins] <= numbers).all()
    assert (numbers < BIN_STARTS[bins + 1]).all()
    assert (np.diff(BIN_STARTS)[bins] <= np.maximum(1, numbers / 100)).all()


@pytest.mark.parametrize("name", TRACES)
def test_a_generated_trace_has_the_locality_of_its_profile(name: str) -> None:
    """Distances measured on what was generated; as long as the profiled trace they agree to a thousandth."""
    size, ids = TRACES[name]
    profile = profiled(size, ids)
    generated = AccessGenerator(profile, (1,)).draw(len(ids))
    generated_profile = profiled(size, generated)
    assert distance_between([profile], [generated_profile]).low < 0.001
    assert generated_profile.distinct == profile.distinct
    first, second = LruStack(size).use(ids), LruStack(size).use(generated)
    assert ks_2samp(np.where(first < 0, size, first), np.where(second < 0, size, second)).statistic < 0.005
    growth = np.abs(np.cumsum(profile.first_uses) - np.cumsum(generated_profile.first_uses)).max()
    assert growth <= 1 + 0.001 * len(ids)
    assert (generated != ids).any()


def test_a_trace_without_locality_is_told_apart() -> None:
    """Uniform ids over as many rows are far from a trace with hot ids."""
    size, ids = TRACES["zipf"]
    uniform = profiled(size, np.random.default_rng(0).integers(0, size, len(ids)))
    assert distance_between([profiled(size, ids)], [uniform]).low > 0.3


def test_shorter_and_longer_traces() -> None:
    """As a prefix of the profiled trace where it is shorter; where it is longer new ids stop coming."""
    size, ids = TRACES["moving"]
    profile = profiled(size, ids)
    half = profiled(size, AccessGenerator(profile, (1,)).draw(50_000))
    assert distance_between([half], [profiled(size, ids[:50_000])]).low < 0.02
    twice = profiled(size, AccessGenerator(profile, (1,)).draw(200_000))
    assert twice.distinct == profile.distinct
    finite = profile.distances / profile.distances.sum(), twice.distances / twice.distances.sum()
    assert np.abs(np.cumsum(finite[0]) - np.cumsum(finite[1])).max() < 0.005


def test_a_seed_decides_the_trace() -> None:
    profile = profiled(*TRACES["zipf"])
    whole = AccessGenerator(profile, (1,)).draw(70_000)
    np.testing.assert_array_equal(whole, AccessGenerator(profile, (1,)).draw(70_000))
    assert (AccessGenerator(profile, (2,)).draw(1000) != whole[:1000]).mean() > 0.5


def test_profiles_survive_the_disk(tmp_path: Path) -> None:
    profiles = {name: profiled(*trace) for name, trace in TRACES.items()}
    save_profiles(tmp_path / "p.npz", profiles, 123)
    stored_profiles, rows = load_profiles(tmp_path / "p.npz")
    assert rows == 123
    assert list(stored_profiles) == list(profiles)
    for name, profile in profiles.items():
        for key, value in vars(profile).items():
            np.testing.assert_array_equal(getattr(stored_profiles[name], key), value)
    for content in (b"", b"no profile"):
        (tmp_path / "bad.npz").write_bytes(content)
        refused("not a locality profile", load_profiles, tmp_path / "bad.npz")


def command(name: str, *overrides: str) -> None:
    """Do what a command does."""
    row = COMMANDS[name]
    config = compose_config(load(str(row.schema)), row.config_dir, [f"locality.{each}" for each in overrides], "schema")
    assert load(row.function)(config) == 0


def test_a_plot_and_tables_that_differ(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for name, kind in (("one", "zipf"), ("two", "zipf"), ("other/one", "moving"), ("other/two", "moving")):
        (tmp_path / f"{name}.txt").write_text(", ".join(map(str, TRACES[kind][1][:5000] * 7 + 10**9)))
    trace = f"trace=[{tmp_path}/one.txt,{tmp_path}/two.txt]"
    command("compare-traces", trace, f"other={tmp_path}/other", f"plot={tmp_path}/lru.svg")
    assert (tmp_path / "lru.svg").read_text().count("<polyline") == 2
    with pytest.raises(UserError, match=r"its tables are \['one'\], not \['one', 'two'\]"):
        command("compare-traces", trace, f"other={tmp_path}/one.txt")


def test_bad_words_are_named(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("1 2\n3 four")
    refused(r"x.txt: access 4: 'four' is not a whole number", read_text_trace, tmp_path / "x.txt")
    (tmp_path / "x.txt").write_text(" \n")
    refused("no ids in it", read_text_trace, tmp_path / "x.txt")


@pytest.mark.slow("examples")
def test_a_dataset_with_the_locality_of_another(tmp_path: Path) -> None:
    """One-hot features and bags; every split goes on where the one before ended; a seed decides every byte."""
    shape = ["data.random.tables=[500,3000,40]", "data.random.rows=20000", "data.random.eval_rows=0"]
    bags = ["data.random.bag_sizes=[1,4,3]", "data.random.bags_vary=true", "data.random.distribution=zipf"]
    prepare("data.source=random", *shape, *bags, f"data.path={tmp_path}/first")
    profiles, rows = profile_accesses(str(tmp_path / "first"), "train", 2)
    assert rows == 20_000
    assert profiles["cat_1"].bag_lengths.tolist()[0] == 0
    save_profiles(tmp_path / "p.npz", profiles, rows)
    overrides = ["data.source=trace", f"data.trace.profile={tmp_path}/p.npz", "data.trace.eval_rows=3000"]
    manifest = prepare(*overrides, f"data.path={tmp_path}/made")
    assert verify_dataset(tmp_path / "made") == manifest
    assert manifest.num_embeddings == {"cat_0": 500, "cat_1": 3000, "cat_2": 40}
    assert manifest.ragged == ["cat_1", "cat_2"]
    assert [manifest.splits[split].rows for split in ("train", "val", "test")] == [20_000, 3000, 3000]
    generated_profiles, _ = profile_accesses(str(tmp_path / "made"), "train", 1)
    for name, profile in profiles.items():
        assert distance_between([profile], [generated_profiles[name]]).low < 0.01
        lengths, generated_lengths = (p.bag_lengths / p.bag_lengths.sum() for p in (profile, generated_profiles[name]))
        np.testing.assert_allclose(lengths, generated_lengths, atol=0.02)
    prepare(*overrides, f"data.path={tmp_path}/again", "data.workers=3")
    assert sums(tmp_path / "again") == sums(tmp_path / "made")
    assert load_manifest(tmp_path / "made").extra["bayes"]["splits"]["test"]["rows"] == 3000
    assert 0.6 < manifest.extra["bayes"]["auc"] < 0.9


def test_labels_of_a_trace_can_be_learned(tmp_path: Path) -> None:
    """The truth's AUC on the labels is what the manifest says it would be, and far from chance."""
    save_profiles(tmp_path / "p.npz", {"a": profiled(*TRACES["three ids"])}, 9000)
    overrides = ["data.source=trace", f"data.trace.profile={tmp_path}/p.npz", f"data.path={tmp_path}/made"]
    bayes = prepare(*overrides, "data.trace.rows=30000", "data.trace.eval_rows=1").extra["bayes"]
    assert bayes["sampled_auc"] == pytest.approx(bayes["auc"], abs=0.015)
    labels, dense, _ = load_split(tmp_path / "made", "train")
    assert abs(np.corrcoef(labels, dense.T)[0, 1:]).max() > 0.05
    refused(r"data.trace.profile: not given", prepare, "data.source=trace", f"data.path={tmp_path}/none")


@pytest.mark.parametrize("name", ["zipf", "moving", "loop", "three ids"])
@pytest.mark.parametrize("part", [0.1, 0.5, 1, 2])
def test_the_share_of_ids_used_before_is_foretold(name: str, part: float) -> None:
    size, ids = TRACES[name]
    profile, count = profiled(size, ids), int(part * len(ids))
    generated_profile = profiled(size, AccessGenerator(profile, (1,)).draw(count))
    assert share_used_before(profile, count) == pytest.approx(1 - generated_profile.distinct / count, abs=0.002)


def test_who_asks_for_another_length_is_warned(capfd: pytest.CaptureFixture[str]) -> None:
    """By a lower bound of the distance, of the table that loses most; never without cause."""
    profiles = {name: profiled(*TRACES[name]) for name in ("three ids", "zipf")}
    counts = {name: len(TRACES[name][1]) // 5 for name in profiles}
    warn_of_length(profiles, counts, "asked", "profiled")
    error = capfd.readouterr().err
    assert error.startswith("warning: asked, but the profile is of profiled: it is like the trace's beginning")
    assert "in zipf" in error
    assert error.count("\n") == 1
    (least,) = re.findall(r"at least (0\.\d+) off", error)
    cut = profiled(TRACES["zipf"][0], AccessGenerator(profiles["zipf"], (1,)).draw(counts["zipf"]))
    assert 0.05 < float(least) <= distance_between([profiles["zipf"]], [cut]).low + 0.001
    for lengths in ({name: p.accesses for name, p in profiles.items()}, {"zipf": 100_000, "three ids": 90}):
        warn_of_length(profiles, lengths, "asked", "profiled")
    assert capfd.readouterr().err.count("\n") == 1  # 90 of three ids: 3 first uses in 90
    warn_of_length({"a": profiles["three ids"]}, {"a": 10**6}, "asked", "profiled")
    assert not capfd.readouterr().err


def test_a_dataset_of_another_length_warns(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save_profiles(tmp_path / "p.npz", {"a": profiled(*TRACES["zipf"])}, 100_000)
    overrides = ["data.source=trace", f"data.trace.profile={tmp_path}/p.npz", "data.trace.eval_rows=1"]
    prepare(*overrides, f"data.path={tmp_path}/cut", "data.trace.rows=10000")
    assert "warning: data.trace.rows=10000, but the profile is of 100,000 samples" in capfd.readouterr().err
    prepare(*overrides, f"data.path={tmp_path}/whole")
    assert "warning" not in capfd.readouterr().err


def test_a_working_set_inside_a_bin_is_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Distances beyond 255 are kept in bins, at whose ends alone these two hit as often."""
    traces = {}
    for name, size in (("one", 302), ("two", 301)):  # in turn: all but first uses are at a distance of 301, of 300
        traces[name] = np.tile(np.arange(size), 5)
        (tmp_path / name).mkdir()
        (tmp_path / name / "t.txt").write_text("\n".join(map(str, traces[name])))
    rates = [hit_rates(stack_distances(ids.tolist()), 400) for ids in traces.values()]
    expected = float(np.abs(rates[0] - rates[1]).max())
    assert expected > 0.5
    command("compare-traces", f"trace={tmp_path}/one/t.txt", f"other={tmp_path}/two/t.txt")
    output = capsys.readouterr().out
    assert f"largest of 1 tables: {expected:.5f}; of all accesses together: {expected:.5f}\n" in output
    for name in traces:
        command("profile-trace", f"trace={tmp_path}/{name}/t.txt", f"profile={tmp_path}/{name}.npz")
    capsys.readouterr()
    command("compare-traces", f"trace={tmp_path}/one.npz", f"other={tmp_path}/two.npz")
    match = re.search(r"of all accesses together: (\S+) to (\S+)", capsys.readouterr().out)
    assert match is not None
    assert float(match[1]) < 0.01 < expected <= float(match[2])  # a range, which says that it does not know


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("generate-trace", ["profile=x.txt", "to=new"], "not a locality profile"),
        ("generate-trace", ["profile=x.npz", "to=new", "accesses=0"], "must be at least 1"),
        ("profile-trace", ["trace=x.txt"], r"locality\.profile has no value; add locality\.profile=\.\.\."),
        ("profile-trace", ["trace=made", "profile=new.npz", "split=dev"], "no split"),
        ("profile-trace", ["trace=x.txt", "profile=new.npz", "to=new"], r"'to' not in"),
        ("compare-traces", ["trace=made", "other=x.txt", "plot=new.svg"], "its tables are"),
    ],
)
def test_a_refusal_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, keys: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("1 2 3 1")
    if "trace=made" in keys:
        prepare("data.source=random", "data.random.tables=[9]", "data.random.rows=20", "data.path=made")
    before = sorted(tmp_path.rglob("*"))
    refused(message, command, name, *keys)
    assert sorted(tmp_path.rglob("*")) == before


def test_every_key_has_its_limits_and_a_meaning() -> None:
    check_limits(ProfileConfig, {})
    check_limits(CompareConfig, {})
    check_limits(GenerateConfig, {"locality.accesses": ONE, "locality.seed": ZERO})
    limits = {"rows": ONE, "eval_rows": ZERO, "seed": ZERO, "click_rate": INSIDE, "difficulty": DIFFICULTY}
    check_limits(TraceConfig, limits)


def test_the_page_has_the_table_of_every_key_of_the_source() -> None:
    page = (Path(__file__).parents[3] / "docs/locality.md").read_text()
    rows = "\n".join(key_table(TraceConfig, plain_values(TraceConfig))).replace("\n| `", "\n| `data.trace.")
    assert rows in page, f"docs/locality.md must have this table:\n{rows}"
