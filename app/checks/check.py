"""The result of one check."""

from enum import Enum
from typing import NamedTuple


class Verdict(Enum):
    """ok; warn: it works, but more slowly or with something missing; fail: it does not work."""

    ok = "ok"
    warn = "warn"
    fail = "fail"


class Check(NamedTuple):
    """Result of one check: its name, the verdict, the finding, and the remedy unless the verdict is ok."""

    name: str
    verdict: Verdict
    found: str
    remedy: str | None = None


def ok(name: str, finding: str) -> Check:
    """Return a check that found no fault."""
    return Check(name, Verdict.ok, finding)


def warn(name: str, finding: str, remedy: str) -> Check:
    """Return a check of something that works, but more slowly or with something missing."""
    return Check(name, Verdict.warn, finding, remedy)


def fail(name: str, finding: str, remedy: str) -> Check:
    """Return a check of something that does not work."""
    return Check(name, Verdict.fail, finding, remedy)
