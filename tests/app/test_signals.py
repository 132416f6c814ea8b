"""Signals as people cause them, and at exact moments, on one process and on several: what is saved and said."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from app.checkpoint.files import whole_checkpoints
from tests.app.at_moment import REACHED
from tests.app.conftest import SMALL, Command, Job, app_environment
from tests.app.run_files import events, summary
from tests.fast_python import fast_python
from tests.waits import wait_until

CTRL_C = b"\x03"
PATIENCE_SECONDS = 240
COLUMNS = 120


class Terminal:
    """A session whose foreground job is the command."""

    def __init__(self, command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
        self._keys, screen = pty.openpty()
        fcntl.ioctl(self._keys, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        self._text = b""
        self._more = threading.Condition()
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**environment, "TERM": "xterm"},
            stdin=screen,
            stdout=screen,
            stderr=screen,
            preexec_fn=_take_terminal,  # noqa: PLW1509  # setsid alone leaves the session without a terminal
        )
        os.close(screen)
        self._closing = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while not self._closing:
            if not select.select([self._keys], [], [], 0.05)[0]:
                continue
            try:
                text = os.read(self._keys, 1 << 16)
            except OSError:  # no process has it open
                break
            with self._more:
                self._text += text
                self._more.notify_all()
        os.close(self._keys)  # here, as a read that waits would keep it open

    @property
    def text(self) -> str:
        """All that was written to the terminal so far."""
        return self._text.decode(errors="replace").replace("\r\n", "\n")

    @property
    def lines(self) -> list[str]:
        """Return what a person sees: each line after its last return to the margin or erasure, without colours."""
        text = re.sub(r"\x1b\[\d*m", "", self.text)
        return [re.split(r"\r|\x1b\[K|\x1b\[A", line)[-1].rstrip() for line in text.split("\n")]

    def wait_for(self, pattern: str) -> None:
        """Wait until a pattern has been written."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self._more:
            while not re.search(pattern, self.text):
                assert self.process.poll() is None, f"{pattern!r} never came:\n{self.text}"
                self._more.wait(1.0)
                if time.monotonic() > deadline:
                    self.process.kill()
                    raise AssertionError(f"{pattern!r} never came:\n{self.text}")

    def press(self, key: bytes) -> None:
        """Press a key."""
        os.write(self._keys, key)

    def close(self) -> None:
        """Close the window: the kernel sends SIGHUP."""
        self._closing = True
        self._reader.join()

    def end(self) -> int:
        """Wait for the command's exit status, as a shell reports it."""
        try:
            status = self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"did not end:\n{self.text}") from None
        self._reader.join(1)  # what it wrote last; a process that outlives it keeps the terminal open
        return status if status >= 0 else 128 - status


def _take_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


STEP = r"step [1-9]\d*/"  # the progress bar has been drawn
NEVER_SHOWN = r"Traceback|death signal|closing signal|\[W|W\d{4} |\^"


def python() -> list[str]:
    return [str(fast_python()), "-m"]


def launched(processes: int) -> list[str]:
    return [*python(), *(["app.launch", "--nproc-per-node", str(processes), "-m"] if processes > 1 else [])]


def on_terminal(command: Sequence[str], cwd: Path, **environment: str) -> Terminal:
    inherited = {key: value for key, value in app_environment().items() if key != "MAKELEVEL"}
    return Terminal(command, cwd, {**inherited, **environment})


def endless(dataset: Path) -> list[str]:
    return ["app.train", *SMALL, f"data.path={dataset}", "run.name=x", "train.epochs=60000", "train.log_every_steps=10"]


def processes_with(word: str, file: str) -> list[int]:
    """Those that have a word in this file of /proc."""
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if word.encode() in (path / file).read_bytes():
                pids.append(int(path.name))
    return pids


def assert_stopped_whole(terminal: Terminal, run: Path, name: str, status: int = 75) -> None:
    """It ended after a whole checkpoint, the log names the signal, and nothing ugly is on the screen."""
    assert terminal.end() == status, terminal.text
    figures = summary(run)
    assert figures["status"] == "interrupted"
    assert whole_checkpoints(run / "checkpoints")[-1].name == f"step_{figures['steps']:08d}"
    logged = (run / "log.txt").read_text()
    assert re.search(rf"WARNING {name}: stopping .*; signal again to stop immediately", logged)
    assert f"s after {name}\n" in logged
    assert "report: " in logged
    assert not [line for line in terminal.lines if re.search(NEVER_SHOWN, line)], terminal.text


def at_moment(moment: str, command: Sequence[str], cwd: Path) -> Terminal:
    """A command of tests.app.at_moment that has come there."""
    terminal = on_terminal(command, cwd, MOMENT=moment)
    terminal.wait_for(REACHED)
    return terminal


def training(processes: int, overrides: list[str], *more: str) -> list[str]:
    """A training with a pause in it."""
    return [*launched(processes), "tests.app.at_moment", "train", *overrides, "run.name=x", *more]


@pytest.mark.slow("processes")
@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_a_run_on_a_terminal_is_stopped_and_saved(name: str, dataset: Path, tmp_path: Path) -> None:
    terminal = on_terminal([*launched(2), *endless(dataset)], tmp_path)
    terminal.wait_for(STEP)
    if name == "SIGHUP":
        terminal.close()
    else:
        terminal.press(CTRL_C)
    assert_stopped_whole(terminal, tmp_path / "runs/x", name)


@pytest.mark.slow("processes")
@pytest.mark.parametrize(("processes", "moment", "steps"), [(1, "in the save:1", 10), (2, "in the evaluation:2", 0)])
def test_a_key_at_any_time_saves(processes: int, moment: str, steps: int, overrides: list[str], tmp_path: Path) -> None:
    terminal = at_moment(moment, training(processes, overrides, "train.max_steps=9000"), tmp_path)
    terminal.press(CTRL_C)
    terminal.wait_for("SIGINT: stopping")
    (tmp_path / "go").touch()
    assert_stopped_whole(terminal, tmp_path / "runs/x", "SIGINT")
    assert summary(tmp_path / "runs/x")["steps"] > steps


@pytest.mark.slow("processes")
def test_a_second_key_ends_all_at_once_and_says_what_is_lost(overrides: list[str], tmp_path: Path) -> None:
    terminal = at_moment("in the save:2", training(2, overrides, f"run.dir={tmp_path}/runs/x"), tmp_path)
    terminal.press(CTRL_C)
    terminal.wait_for("SIGINT: stopping")
    time.sleep(0.5)  # two keys, and not one that bounces
    terminal.press(CTRL_C)
    assert terminal.end() == 130, terminal.text
    message = f"SIGINT: stopped immediately: the same command resumes from {tmp_path}/runs/x/checkpoints/step_00000012"
    assert message in terminal.text
    assert message in (tmp_path / "runs/x/log.txt").read_text()
    wait_until(lambda: not processes_with(str(tmp_path), "cmdline"))


@pytest.mark.slow("processes")
def test_processes_end_with_their_launcher(dataset: Path, tmp_path: Path) -> None:
    """kill -9 leaves it no time to tell them; the kernel does, and they save."""
    command = [sys.executable, "-m", "app.launch", "--nproc-per-node", "2", "-m", *endless(dataset)]
    command += [f"run.dir={tmp_path}/runs/x"]
    terminal = on_terminal(command, tmp_path)
    terminal.wait_for(STEP)
    terminal.process.kill()
    wait_until(lambda: not processes_with(str(tmp_path), "cmdline"))
    assert summary(tmp_path / "runs/x")["status"] == "interrupted"
    assert whole_checkpoints(tmp_path / "runs/x/checkpoints")


@pytest.mark.slow("processes")
def test_what_is_left_of_a_lost_process_is_told_as_it_is(dataset: Path, run_app: Command, tmp_path: Path) -> None:
    terminal = on_terminal([*launched(2), *endless(dataset)], tmp_path, TEST=tmp_path.name)
    terminal.wait_for(STEP)
    (pid,) = {*processes_with(f"TEST={tmp_path.name}\0", "environ")} & {*processes_with("\0RANK=1\0", "environ")}
    os.kill(pid, signal.SIGKILL)
    assert terminal.end() == 128 + signal.SIGKILL, terminal.text
    assert "sav" not in terminal.text
    assert "there is no checkpoint, so the same command starts over" in terminal.text
    assert "error: process 1 was ended by SIGKILL" in terminal.text
    assert not [line for line in terminal.lines if re.search(NEVER_SHOWN, line)], terminal.text


@pytest.mark.slow("processes")
def test_who_saves_nothing_ends_with_one_line(uninterrupted: Path, tmp_path: Path) -> None:
    command = [*python(), "tests.app.at_moment", "evaluate", f"run={uninterrupted}"]
    terminal = at_moment("in the digests:1", command, tmp_path)
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.end() == 128 + signal.SIGTERM, terminal.text
    assert terminal.lines[-2:] == ["SIGTERM: stopped before the end", ""]
    assert terminal.text.count("\n") == 3  # the moment's two, and this


def test_a_key_while_modules_are_imported(tmp_path: Path) -> None:
    terminal = on_terminal([sys.executable, "-m", "app.train", "run.name=x"], tmp_path)
    pid, hang_up = terminal.process.pid, 1 << (signal.SIGHUP - 1)

    def handles_signals() -> bool:
        (caught,) = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
        return bool(int(caught, 16) & hang_up)

    wait_until(handles_signals)
    terminal.press(CTRL_C)
    assert terminal.end() == 130, terminal.text
    assert re.fullmatch(r"SIGINT: (stopped before it began|stopped .*)\n?", "\n".join(terminal.lines)), terminal.text


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "processes", "most"), [("SIGTERM", 1, 31), pytest.param("SIGUSR1", 2, 40, marks=pytest.mark.slow)]
)
def test_the_step_is_finished_and_no_more_are_begun(name: str, processes: int, most: int, job: Job) -> None:
    stopped = job.train(processes=processes, fault=f"{name} in the step:31", status=75)
    assert f"{name}: stopping" in stopped.stderr
    assert "the same command resumes" in stopped.stderr
    assert (job.summary()["status"], job.summary()["steps"]) == ("interrupted", most)
    assert job.last_checkpoint() == f"step_{most:08d}"


@pytest.mark.slow("processes")
def test_a_signal_in_an_evaluation_is_seen_inside(job: Job) -> None:
    """An evaluation has 8 batches: the signal comes in the seventh of step 40's."""
    job.train("eval.global_batch_size=64", fault="signal in the evaluation:15", status=75)
    assert job.summary()["steps"] == 40
    assert [event["step"] for event in events(job.run, "eval")] == [20]
    job.train("eval.global_batch_size=64")
    assert [event["step"] for event in events(job.run, "eval")] == [20, 40, 60]
    job.assert_undisturbed()


def test_a_signal_before_the_first_step_leaves_nothing(job: Job) -> None:
    stopped = job.train(fault="signal in the sums:2", status=128 + signal.SIGTERM)
    assert stopped.stderr.endswith("SIGTERM: stopped before the first step; nothing was trained yet\n")
    assert not job.run.parent.exists()
