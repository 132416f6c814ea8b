"""A profile that is cut short, or goes on beyond its end, loses locality: how much is foretold, and said."""

import re

import pytest

from data_prep.pipeline import preprocess
from data_prep.traces.histogram import distance_between, save_profiles
from data_prep.traces.length import share_used_before, warn_of_length
from data_prep.traces.sampler import AccessGenerator
from tests.data_prep.conftest import config
from tests.data_prep.traces.test_locality import TRACES, profiled


@pytest.mark.parametrize("name", ["zipf", "moving", "loop", "three ids"])
@pytest.mark.parametrize("part", [0.1, 0.5, 1, 2])
def test_the_share_of_ids_used_before_is_foretold(name, part):
    size, ids = TRACES[name]
    profile, count = profiled(size, ids), int(part * len(ids))
    found = profiled(size, AccessGenerator(profile, (1,)).draw(count))
    assert share_used_before(profile, count) == pytest.approx(1 - found.distinct / count, abs=0.002)


def test_who_asks_for_another_length_is_warned(capfd):
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
    assert 0.05 < float(least) <= distance_between(profiles["zipf"], cut) + 0.001
    for kept in ({name: p.accesses for name, p in profiles.items()}, {"zipf": 100_000, "three ids": 90}):
        warn_of_length(profiles, kept, "asked", "profiled")
    assert capfd.readouterr().err.count("\n") == 1  # 90 of three ids: 3 first uses in 90
    warn_of_length({"a": profiles["three ids"]}, {"a": 10**6}, "asked", "profiled")
    assert not capfd.readouterr().err


def test_a_dataset_of_another_length_warns(tmp_path, capfd):
    save_profiles(tmp_path / "p.npz", {"a": profiled(*TRACES["zipf"])}, 100_000)
    overrides = ["data=trace", f"data.trace.profile={tmp_path}/p.npz", "data.trace.eval_rows=1"]
    preprocess(config(*overrides, f"data.path={tmp_path}/cut", "data.trace.rows=10000"))
    assert "warning: data.trace.rows=10000, but the profile is of 100,000 samples" in capfd.readouterr().err
    preprocess(config(*overrides, f"data.path={tmp_path}/whole"))
    assert "warning" not in capfd.readouterr().err
