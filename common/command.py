"""Rows of commands, and the secrets that no output shows."""

import ast
import base64
import importlib.util
import inspect
import logging
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from urllib.parse import unquote, urlsplit

log = logging.getLogger("clickwork")  # of all commands: to the terminal, and into a run's directory

MASK = "***"

# A bare key, a number of tokens and a tokenizer are no secrets, so short words count only beside others.
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
    # The names accessKey and access_key are the same.
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
    """Mask the secrets in a command line's arguments key=value."""
    pairs = [(argument, *argument.partition("=")) for argument in arguments]
    return [f"{name}={MASK}" if value and is_secret(name) else redact(whole) for whole, name, _, value in pairs]


def redact_message(message: str, arguments: Sequence[str]) -> str:
    """Mask the secrets in a message, including those in the command's arguments wherever they occur."""
    for argument in arguments:
        name, _, value = argument.partition("=")
        if value and is_secret(name):
            # The message may show the value with its quotes or without them.
            message = message.replace(value, MASK).replace(value.strip("\"'"), MASK)
    return _redact_text(message)


def split_login(url: str) -> tuple[str, str | None]:
    """Return a URL without its login, and the login's Authorization header (RFC 7617, basic) or None."""
    parts = urlsplit(url)
    login, is_there, host = parts.netloc.rpartition("@")
    if not is_there:
        return url, None
    user, _, password = login.partition(":")
    # A login's reserved characters are escaped in a URL, but not in the header.
    basic = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
    return parts._replace(netloc=host).geturl(), f"Basic {basic}"


class RedactingFormatter(logging.Formatter):
    """Formats log lines without secrets, and without colours unless for a terminal."""

    def __init__(self, form: str, is_terminal: bool) -> None:
        """form: format of a line, as for logging. is_terminal: whether lines go to a terminal, which shows colours."""
        super().__init__(form)
        self._is_terminal = is_terminal

    def format(self, record: logging.LogRecord) -> str:
        line = _redact_text(super().format(record))
        return line if self._is_terminal else _COLOUR.sub("", line)


def _redact_text(text: str) -> str:
    """Mask the logins of URLs, and the values of names that mark secrets, in a text."""
    text = _LOGIN.sub(f"{MASK}@", text)
    for pair in _PAIRS:
        text = pair.sub(lambda pair: f"{pair['name']}{pair['is']}{MASK}" if is_secret(pair["name"]) else pair[0], text)
    return text


class Command(NamedTuple):
    """A command. Objects are named as "module:object" and imported when needed.

    name: NAME of `clickwork NAME`. module: MODULE of `python -m MODULE`. summary: one line of help.
    function: takes the configuration or, without a schema, the list of arguments; returns an exit status.
    schema: dataclass of the configuration. config: file of values in `config_dir`, without .yaml; schema: its defaults.
    has_groups: whether the command takes groups of ready-made values, such as recipe=NAME. check: checks the
    configuration before the module is imported. leave: ends the process with an exit status.
    """

    name: str
    module: str
    function: str
    summary: str
    schema: str | None = None
    config: str = "config"
    config_dir: Path = Path()
    has_groups: bool = False
    check: str | None = None
    leave: str = "sys:exit"

    def path(self) -> Path:
        """Return the file of the function's module without importing it."""
        spec = importlib.util.find_spec(self.function.partition(":")[0])
        assert spec is not None
        assert spec.origin is not None
        return Path(spec.origin)

    def description(self) -> str:
        """Return the docstring of the function's module."""
        return inspect.cleandoc(ast.get_docstring(ast.parse(self.path().read_text(encoding="utf-8"))) or "")


def index_by_name(*commands: Command) -> dict[str, Command]:
    """Return commands by their names."""
    return {command.name: command for command in commands}


def end_without_package(error: ModuleNotFoundError) -> NoReturn:
    """End the process with exit status 2 and a line with the missing package and what to type instead."""
    words = sys.orig_argv[1:]  # During an import, `-m` and the module are in no other place.
    command = redact_arguments(words[words.index("-m") :] if "-m" in words else words)
    sys.stderr.write(
        f"error: {error.name} is not installed for {sys.executable}; run `make environment`, then "
        f"`.venv/bin/python {shlex.join(command)}`\n"
    )
    sys.exit(2)
