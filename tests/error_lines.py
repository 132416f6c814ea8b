"""Errors of one line: of a command on stderr, of a call as an exception."""

from collections.abc import Callable
from typing import Any

import pytest

from common.errors import UserError


def error_line(stderr: str) -> str:
    """The one line of an error, all there is but for the kernels compiled on a fresh checkout."""
    lines = [line for line in stderr.splitlines() if not line.startswith("compiling ")]
    assert len(lines) == 1, stderr
    assert lines[0].startswith("error: "), stderr
    return lines[0]


def refused(message: str, call: Callable[..., object], *arguments: Any, **more: Any) -> str:
    """The one line by which a call is refused, which has `message`, a regular expression."""
    with pytest.raises(UserError, match=message) as error:
        call(*arguments, **more)
    assert "\n" not in str(error.value)
    return str(error.value)
