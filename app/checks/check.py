"""The result of one check."""

from enum import Enum
from typing import NamedTuple


class Verdict(Enum):
    """ok; warn: works, but slower or with something missing; fail: does not work."""

    ok = "ok"
    warn = "warn"
    fail = "fail"


class Check(NamedTuple):
    """Result of one check: its name, the verdict, the finding, and the remedy unless it is ok."""

    name: str
    verdict: Verdict
    found: str
    remedy: str | None = None


def ok(name: str, finding: str) -> Check:
    """A check without findings."""
    return Check(name, Verdict.ok, finding)


def warn(name: str, finding: str, remedy: str) -> Check:
    """Works, but slower or with something missing."""
    return Check(name, Verdict.warn, finding, remedy)


def fail(name: str, finding: str, remedy: str) -> Check:
    """Does not work."""
    return Check(name, Verdict.fail, finding, remedy)
