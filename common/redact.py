"""Masking of secrets in records and output: logins in URLs, and values whose names mark them as secret."""

import base64
import logging
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

MASK = "***"

_SECRET_NAME = re.compile(
    r"passw|passphrase|secret|credential|token(?!iz)|api_?key|"
    r"(?:^|[_.-])(?:pwd|pw|auth|authorization|cookie|sig|signature)(?:$|[_.-])|[^_.-][_.-]keys?(?:$|[_.-])",
    re.IGNORECASE,
)
# A login ends at the last @ before the path or, if its password has a /, at the very last @. A URL that was taken for a
# path has one slash.
_LOGIN = re.compile(
    r"""(?:(?<=://)|(?<=http:/)|(?<=https:/)|(?<=ftp:/)|(?<=s3:/))(?:[^/\s]*|[^/\s'":@]+:(?!\d*/)[^\s'"]*)@"""
)
_VALUE = r"""(?P<value>"[^"]*"|'[^']*'|[^\s,;&'"{}\[\])]+)"""
_PAIRS = (  # NAME=VALUE anywhere; NAME: VALUE within braces
    re.compile(rf"(?P<name>[\w.-]+)(?P<is>\s*=\s*){_VALUE}"),
    re.compile(rf"""(?P<name>[\w.-]+)(?P<is>["']?\s*:\s*){_VALUE}(?=\s*[,}}])"""),
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def is_secret(name: str) -> bool:
    """Return whether a variable's or key's name marks its value as secret; a dotted key counts by its last part."""
    last = name.rpartition(".")[2]
    return _SECRET_NAME.search(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", last)) is not None


def redact(content: Any) -> Any:
    """Mask the secrets in JSON-like content or text. Only text is masked: a number of tokens is no secret."""
    if isinstance(content, dict):
        return {
            key: MASK if isinstance(value, str) and value and is_secret(str(key)) else redact(value)
            for key, value in content.items()
        }
    if isinstance(content, (list, tuple)):
        return [redact(value) for value in content]
    return _redact_text(content) if isinstance(content, str) else content


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """Mask the secrets in key=value arguments of a command line."""
    pairs = [(argument, *argument.partition("=")) for argument in arguments]
    return [f"{name}={MASK}" if value and is_secret(name) else redact(whole) for whole, name, _, value in pairs]


def redact_message(message: str, arguments: Sequence[str]) -> str:
    """Mask the secrets in a message, including those in the command's arguments wherever they occur."""
    for argument in arguments:
        name, _, value = argument.partition("=")
        if value and is_secret(name):
            message = message.replace(value, MASK).replace(value.strip("\"'"), MASK)
    return _redact_text(message)


def split_login(url: str) -> tuple[str, str | None]:
    """Return a URL without its login, and the login's Authorization header (RFC 7617, basic) or None."""
    parts = urlsplit(url)
    login, is_there, host = parts.netloc.rpartition("@")
    if not is_there:
        return url, None
    user, _, password = login.partition(":")
    basic = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
    return parts._replace(netloc=host).geturl(), f"Basic {basic}"


class RedactingFormatter(logging.Formatter):
    """Formats log lines without secrets, and without colours unless for a terminal."""

    def __init__(self, form: str, is_terminal: bool) -> None:
        super().__init__(form)
        self._is_terminal = is_terminal

    def format(self, record: logging.LogRecord) -> str:
        line = _redact_text(super().format(record))
        return line if self._is_terminal else _COLOUR.sub("", line)


def _redact_text(text: str) -> str:
    def masked(match: re.Match[str]) -> str:
        return f"{match['name']}{match['is']}{MASK}" if is_secret(match["name"]) else match[0]

    text = _LOGIN.sub(f"{MASK}@", text)
    for pair in _PAIRS:
        text = pair.sub(masked, text)
    return text
