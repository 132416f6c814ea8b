"""What a run's manifest says of the checkout it ran from."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from app.record import provenance


def git(cwd: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@y", *arguments]
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout.strip()


def commit(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The first commit of a checkout that the program is to be in."""
    monkeypatch.setattr(provenance, "REPOSITORY", checkout)
    git(checkout, "init", "--quiet")
    git(checkout, "commit", "--quiet", "--allow-empty", "--message", "first")
    return git(checkout, "rev-parse", "HEAD")


def test_whatever_lies_in_a_checkout_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Untracked files of the packages count, by name and content, others do not; a link to a directory, one that leads
    nowhere, another checkout, and a file that is gone by the time it is read."""

    def code() -> dict[str, str | None]:
        code_version = provenance.describe_run().code
        assert code_version
        return {"git_sha": code_version.git_sha or None, "dirty_diff_sha256": code_version.dirty_diff_sha256 or None}

    clean_commit = commit(tmp_path, monkeypatch)
    clean = code()
    assert clean == {"git_sha": clean_commit, "dirty_diff_sha256": None}
    for name in ("ads.tsv", "ratings.yaml", "mine.py", "exports/served/score.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "logs").symlink_to("/usr")
    assert code() == clean
    (tmp_path / "clickwork").mkdir()
    (tmp_path / "clickwork/new.py").write_bytes(b"x")
    assert code()["dirty_diff_sha256"] == hashlib.sha256(b"clickwork/new.pyx").hexdigest()
    (tmp_path / "clickwork/new.py").unlink()
    app = tmp_path / "app"
    app.mkdir()
    (app / "new.txt").write_bytes(b"x" * 3_000_000)
    assert code()["dirty_diff_sha256"] == hashlib.sha256(b"app/new.txt" + b"x" * 3_000_000).hexdigest()
    (app / "new.txt").unlink()
    (app / "data").symlink_to("/usr")
    (app / "nowhere").symlink_to("gone")
    (app / "other").mkdir()
    git(app / "other", "init", "--quiet")
    names = b"app/data/usr" + b"app/nowheregone" + b"app/other/"
    assert code()["dirty_diff_sha256"] == hashlib.sha256(names).hexdigest()
    listed = provenance._run_git

    def listed_with_one_gone(*arguments: str) -> bytes | None:
        return b"app/swap\0" if arguments[0] == "ls-files" else listed(*arguments)

    monkeypatch.setattr(provenance, "_run_git", listed_with_one_gone)
    assert code()["dirty_diff_sha256"] == hashlib.sha256(b"app/swap").hexdigest()


@pytest.mark.parametrize("form", ["branch", "packed", "detached"])
def test_the_commit_is_read_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    expected = commit(tmp_path, monkeypatch)
    if form == "packed":
        git(tmp_path, "pack-refs", "--all")
    if form == "detached":
        git(tmp_path, "checkout", "--quiet", "--detach")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.code()["git_sha"] == expected
