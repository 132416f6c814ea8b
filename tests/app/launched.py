"""`python -m app.launch` as a fork, and the processes that it starts by a fast Python: that saves their starts."""

from collections.abc import Callable
from pathlib import Path

from tests.app.conftest import app_environment
from tests.fast_python import fast_python
from tests.forks import start_module


class Launcher:
    """A launcher under way in `cwd`; what it and its processes say goes to the directory `out`, which it makes."""

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        out: Path,
        interface: str = "",
        python: str = "",
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """interface: the network's that gloo is to use; python: another than the fast one, whose start takes 7 s."""
        out.mkdir()
        variables = {key: value for key, value in app_environment().items() if key != "OMP_NUM_THREADS"}
        variables["PYTHON_EXEC"] = python or str(fast_python())  # read by torchrun
        if interface:
            variables["GLOO_SOCKET_IFNAME"] = interface
        self.out = out
        self.process = start_module("app.launch", *arguments, cwd=cwd, out=out, environment=variables, prepare=prepare)

    def end(self) -> tuple[int, str]:
        """Wait for its exit status, and what was said on stderr."""
        self.process.join(480)
        assert self.process.exitcode is not None, "the launcher did not end"
        return self.process.exitcode, (self.out / "stderr").read_text()
