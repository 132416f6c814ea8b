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


def ok(name: str, found: str) -> Check:
    """A check without findings."""
    return Check(name, Verdict.ok, found)


def warn(name: str, found: str, remedy: str) -> Check:
    """Works, but slower or with something missing."""
    return Check(name, Verdict.warn, found, remedy)


def fail(name: str, found: str, remedy: str) -> Check:
    """Does not work."""
    return Check(name, Verdict.fail, found, remedy)
