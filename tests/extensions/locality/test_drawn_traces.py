"""Drawn traces against the naive program: stack distances, hit rates."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extensions.locality.histogram import load_profiles
from tests.data_prep.conftest import REPOSITORY, seeds
from tests.forks import run_module
from tests.oracles.generated import hit_rates, stack_distances


def drawn_trace(rng: np.random.Generator) -> list[int]:
    """Accesses to one table: skewed, uniform, a loop, or a working set that moves."""
    count, size = int(rng.integers(400, 3000)), int(rng.integers(5, 900))
    kind = rng.integers(4)
    if kind == 0:
        return (rng.zipf(float(rng.uniform(1.1, 2)), count) % size).tolist()
    if kind == 1:
        return rng.integers(0, size, count).tolist()
    if kind == 2:
        return (np.arange(count) % size).tolist()
    return ((rng.zipf(1.5, count) + np.arange(count) // 50) % size).tolist()


def command(name: str, *arguments: str) -> str:
    """Return the printed lines of a command."""
    result = run_module(f"extensions.locality.{name}", *(f"locality.{each}" for each in arguments), cwd=REPOSITORY)
    assert result.returncode == 0, result.stderr
    return result.stdout


def check_profile(profile: Any, distances: list[int | None]) -> None:
    """The histogram of a profile: one by one below 256, from there in bins of at most 1/128 of their distance."""
    reuse_distances = np.array([distance for distance in distances if distance is not None], np.int64)
    assert (profile.accesses, profile.distinct) == (len(distances), len(distances) - len(reuse_distances))
    assert profile.distances.sum() == len(reuse_distances)
    for place in np.flatnonzero(profile.distances):
        near, far = profile.nearest[place], profile.farthest[place]
        inside = reuse_distances[(reuse_distances >= near) & (reuse_distances <= far)]
        assert (len(inside), inside.min(), inside.max()) == (profile.distances[place], near, far)
        assert far - near <= (near / 128 if near >= 256 else 0)


@pytest.mark.parametrize("seed", seeds(2, 20))
def test_drawn_traces(tmp_path: Path, seed: int) -> None:
    """Profile, generated trace and comparison of text traces of two tables."""
    rng = np.random.default_rng([seed, 43])
    traces = [drawn_trace(rng), drawn_trace(rng)]
    print(f"seed {seed}: accesses {[len(ids) for ids in traces]} to {[len(set(ids)) for ids in traces]} rows")
    names = ("a", "b")
    for name, ids in zip(names, traces, strict=True):
        words = [" ", ",", "\n"][rng.integers(3)].join(str(7 * identity + 1) for identity in ids)
        (tmp_path / f"{name}.txt").write_text(words)
    original = f"[{tmp_path}/a.txt,{tmp_path}/b.txt]"
    command("profile", f"trace={original}", f"profile={tmp_path}/p.npz")
    profiles, _ = load_profiles(tmp_path / "p.npz")
    distances = [stack_distances(ids) for ids in traces]
    for name, trace_distances in zip(names, distances, strict=True):
        check_profile(profiles[name], trace_distances)
    command("generate", f"profile={tmp_path}/p.npz", f"to={tmp_path}/made", f"seed={seed}")
    output = command("compare", f"trace={original}", f"other=[{tmp_path}/made/a.txt,{tmp_path}/made/b.txt]")
    for name, trace_distances in zip(names, distances, strict=True):
        generated_distances = stack_distances(
            [int(word) for word in (tmp_path / f"made/{name}.txt").read_text().split()]
        )
        assert len(generated_distances) == len(trace_distances)
        exact, generated_rates = (hit_rates(each, 3000) for each in (trace_distances, generated_distances))
        # The same distances in another order; from 256 on, of the same bins.
        np.testing.assert_allclose(generated_rates[:256], exact[:256], atol=3 / len(generated_distances))
        apart = float(np.abs(exact - generated_rates).max())
        line = re.search(rf"^ *{name} .* (\d\.\d+)$", output, re.MULTILINE)
        assert line is not None
        assert float(line[1]) == pytest.approx(apart, abs=1e-5)
