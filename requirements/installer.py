"""Installer of packages: uv, from the PATH or got by pip, with pip's settings; pip itself where uv cannot be had."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
# pip's options, and uv's variables of the same meaning: uv reads neither pip's configuration nor PIP_* variables.
UV_VARIABLES = re.findall(
    r"(\S+)=(\S+)",
    """index-url=UV_DEFAULT_INDEX extra-index-url=UV_INDEX find-links=UV_FIND_LINKS no-index=UV_NO_INDEX
    constraint=UV_CONSTRAINT trusted-host=UV_INSECURE_HOST default-timeout=UV_HTTP_TIMEOUT timeout=UV_HTTP_TIMEOUT
    retries=UV_HTTP_RETRIES no-cache-dir=UV_NO_CACHE cert=SSL_CERT_FILE client-cert=SSL_CLIENT_CERT
    proxy=HTTPS_PROXY proxy=HTTP_PROXY""",
)
REMEDIES = {
    "No space left": "free disk space, or set VENV=<path on another disk>",
    "(?i)dns error|name resolution|connect|timed out": "without a network, name a mirror or a folder of wheels to pip "
    "(index-url or find-links in its configuration)",
}


class SetupError(Exception):
    """A failed set-up; the message says in one sentence what is wrong and what to do."""


def log(message: str) -> None:
    """Log to stderr: stdout belongs to the command that follows."""
    print(f"set-up: {message}", file=sys.stderr, flush=True)


def find_installer(environment: Path) -> tuple[list[str | Path], dict[str, str]]:
    """Return a command that installs into the environment, and its variables: uv's, or pip's without uv."""
    uv, pip = shutil.which("uv"), find_pip(environment)
    if uv is None:
        uv = str(environment / "uv" / "bin" / "uv")
        if not os.path.exists(uv):
            get = [*pip, "--only-binary", ":all:", "--target", environment / "uv", "-r", HERE / "installer.lock"]
            try:
                run(get, "uv by pip")
            except SetupError as error:
                log(f"{error}; pip installs without uv, which takes one to three minutes")
                return pip, dict(os.environ)
    variables = uv_variables(pip)
    no_index = ["--no-index"] if variables.get("UV_NO_INDEX", "0").lower() in ("1", "true", "yes", "on") else []
    return [uv, "pip", "install", "--quiet", "--python", environment / "bin" / "python", *no_index], variables


def find_pip(environment: Path) -> list[str | Path]:
    """Return the command of a pip that installs into the environment."""
    python = environment / "bin" / "python"
    pip: list[str | Path] = [python, "-m", "pip"]
    if importlib.util.find_spec("pip") and int(importlib.metadata.version("pip").split(".")[0]) >= 23:  # has --python
        pip = [sys.executable, "-m", "pip", "--python", python]
    else:
        run([*pip[:-1], "ensurepip"], f"{sys.executable} has neither pip 23 or later nor ensurepip: install pip")
    return [*pip, "install", "-q", "--disable-pip-version-check", "--no-user"]


def uv_variables(pip: Sequence[str | Path]) -> dict[str, str]:
    """Return the environment for uv, with pip's settings; a UV_* variable that is set already comes first."""
    config = [pip[0], "-m", "pip", "config", "list"]
    listed = subprocess.run(config, capture_output=True, text=True, check=False).stdout
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # as pip: the best release of all indexes
    for section in ("global", "install", ":env:"):  # the last one decides
        for option, text in re.findall(rf"(?m)^{section}\.([\w-]+)=(.*)$", listed):
            values = ("," if option == "find-links" else " ").join(str(ast.literal_eval(text)).split())
            found |= {name: values for known, name in UV_VARIABLES if known == option}
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    if not os.access(next(path for path in (cache, *cache.parents) if path.exists()), os.W_OK):
        found["UV_NO_CACHE"] = "1"
    return {**os.environ, **found, **{name: text for name, text in os.environ.items() if name.startswith("UV_")}}


def run(command: Sequence[str | Path], what: str, variables: Mapping[str, str] | None = None) -> None:
    """Run one step; a failure is one line: the first error that it printed, the last cause, a remedy."""
    done = subprocess.run(
        command,
        check=False,
        close_fds=False,  # a step that outlives its killed set-up keeps the lock
        env=variables,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        named = re.findall(r"(?mi)^ *(?:error|cause): (.*)", done.stdout)
        reason = ": ".join(dict.fromkeys([named[0], named[-1]])) if named else " ".join(done.stdout.split())[-500:]
        remedies = [f"; {remedy}" for sign, remedy in REMEDIES.items() if re.search(sign, done.stdout)]
        raise SetupError(f"{what}: {reason or f'exit status {done.returncode}'}{''.join(remedies[:1])}")
