"""The code of a run and of its replay: by git, and by the digest of the modules."""

import pytest

from app.record.documents import RunManifest
from app.replay.launches import Launch, changes
from common.documents import convert
from tests.app.summaries import LEAST_MANIFEST

A, B = "a" * 40, "b" * 40


def manifest(git_sha: str | None, dirty: str | None, sources: str) -> RunManifest:
    code = {"git_sha": git_sha, "dirty_diff_sha256": dirty, "sources_sha256": sources}
    return convert({**LEAST_MANIFEST, "code": code}, RunManifest)


@pytest.mark.parametrize(
    ("recorded", "now", "differing"),
    [
        ((A, None, "1"), (A, None, "1"), []),
        ((None, None, "1"), (A, None, "1"), ["git_sha"]),
        ((None, None, "1"), (A, "9", "1"), ["dirty_diff_sha256", "git_sha"]),
        ((None, None, "1"), (A, None, "2"), ["git_sha", "sources_sha256"]),
        ((A, None, "1"), (None, None, "2"), ["git_sha", "sources_sha256"]),
        ((A, None, "1"), (B, None, "1"), ["git_sha"]),
        ((A, None, "1"), (A, "9", "2"), ["dirty_diff_sha256", "sources_sha256"]),
    ],
)
def test_code_is_compared_by_all_that_the_run_knows(
    recorded: tuple[str | None, str | None, str], now: tuple[str | None, str | None, str], differing: list[str]
) -> None:
    lines, until = changes([Launch(0, None, manifest(*recorded))], manifest(*now))
    assert [line.split()[1].rstrip(":") for line in lines] == differing
    assert until == (0 if differing else None)
