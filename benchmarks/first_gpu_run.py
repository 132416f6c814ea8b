"""Prove, in the first minutes on a GPU, what only a GPU can show.

    python -m benchmarks.first_gpu_run --out DIR [--minutes 15] [--stages NAME ...] [--shapes NAME ...] [--pretend]

Stages, those that say most first: doctor; the quickstart on the GPU and on the CPU, and how far their losses differ;
operators and whole steps of the shapes in STEPS, in fp32, TF32 and bf16; TorchRec's own DLRM beside ours; the tests
marked gpu; HSTU by the Triton kernel and without it; the quickstart and steps with CUDA graphs; a trace, whose kernels
and waits of the host are counted; the quickstart killed with -9, resumed, replayed; train.deterministic=layout, on one
GPU and, if there are several, on two, with the same bits; exchanges, steps and the quickstart on all GPUs, if there are
several.

Each stage may take its share (`SHARES`) of the time that is left, so that a slow one costs those after it nothing.
DIR/results.json is renewed after every stage and DIR/log.txt is written during each, so that a machine that is taken
away leaves what was done; a stage that fails or runs out of time leaves the figures that it had. The exit status is 1
if a stage failed or was not reached. --pretend: on the device of tests/pretend_cuda, at sizes that show that it works
and nothing else.
"""

import argparse
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from app.record import provenance
from common.documents import plain_object
from common.files import write_atomically

REPOSITORY = Path(__file__).resolve().parents[1]
QUICKSTART = ["train.deterministic=true", "checkpoint.every_steps=50", "record.tensorboard=false", "baselines=false"]
SHORT = ["data.scale=tiny", "train.max_steps=30", "checkpoint.every_steps=10"]  # on a pretended device
SHORT += ["train.eval_every_steps=null"]
SHORT_EVENTS = ["train.max_steps=4", "data.synthetic_events.users=60", "sequences.history_length=15"]
FIRST_TRACED, LAST_TRACED = 30, 34
FIRST_LOSS = 1e-4  # by which a GPU's loss at step 10 may differ from the CPU's; later ones drift apart
# Of the time: about the seconds that each takes on an H100 or H200 with 16 processors.
SHARES = {
    "doctor": 25,
    "quickstart": 55,
    "graphs": 130,
    "peers": 85,
    "steps": 220,
    "tests": 230,
    "hstu": 50,
    "trace": 15,
    "kill": 50,
    "layout": 40,
    "node": 60,
}
# Shapes of steps: the quickstart's; Criteo Kaggle's with narrow and wide vectors; MLPerf v2's, with bags, of smaller
# tables.
STEPS = {
    "quickstart": ["shape.batch_size=512"],
    "kaggle": ["shape.batch_size=8192"],
    "kaggle_128": ["shape.batch_size=65536", "model.embedding_dim=128", "model.dense_arch=[512,256,128]"],
    "mlperf_v2": ["recipe=mlperf_v2", "shape.batch_size=8192", "shape.most_rows=1000000"],
}
PRETENDED_STEPS = {
    "small": ["shape.batch_size=32", "shape.most_rows=50", "model.embedding_dim=16", "model.dense_arch=[512,256,16]"]
}
EVENTS = ["recipe=mlperf_v4", "data.scale=tiny", "data.source=synthetic_events", "mlperf.enabled=false"]
EVENTS += ["train.max_steps=40", "train.eval_every_fraction=null", "sequences.hstu.max_seq_len=1024"]
EVENTS += ["record.tensorboard=false", "baselines=false", "train.global_batch_size=256"]
EVENTS += ["data.synthetic_events.users=2000", "sequences.history_length=510"]


class StageError(Exception):
    """A stage did not succeed; what it logged is in log.txt."""


class FirstRun:
    """The stages, their common clock, and what they found.

    Args:
        out: directory of results.json, log.txt and trace.json.gz, and of the runs in `work`.
        seconds: for all stages together.
        pretend: whether to run on a pretended device.
        shapes: of whole steps, of STEPS.
    """

    def __init__(self, out: Path, seconds: float, pretend: bool, shapes: Sequence[str] = tuple(STEPS)) -> None:
        self._out, self._work, self._pretend = out, out / "work", pretend
        self._until = time.monotonic() + seconds  # of the stage, while one runs
        self._work.mkdir(parents=True, exist_ok=True)
        self._log = open(out / "log.txt", "a", encoding="utf-8")  # noqa: SIM115 -- as long as the process
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])),
        }
        if pretend:  # beside other tests: threads that wait for each other take ten times as long
            self._environment["OMP_NUM_THREADS"] = "1"
        self._shapes = PRETENDED_STEPS if pretend else {name: STEPS[name] for name in shapes}
        self._quickstart_settings = [*QUICKSTART, *(SHORT if pretend else [])]
        self._stages: dict[str, Callable[[dict[str, Any]], None]] = {
            "doctor": self._doctor,
            "quickstart": self._quickstart,
            "steps": self._steps,
            "peers": self._peers,
            "tests": self._tests,
            "hstu": self._hstu,
            "graphs": self._graphs,
            "trace": self._trace,
            "kill": self._kill,
            "layout": self._layout,
            "node": self._node,
        }

    def run(self, names: Sequence[str] = tuple(SHARES)) -> bool:
        """Run the named stages, whatever became of those before them; return whether all succeeded."""
        results: dict[str, Any] = {name: {"status": "not reached"} for name in names}
        end, shares_left = self._until, sum(SHARES[name] for name in names)
        for name in names:
            began = time.monotonic()
            self._until = began + (end - began) * SHARES[name] / shares_left
            shares_left -= SHARES[name]
            figures: dict[str, Any] = {}
            try:
                self._stages[name](figures)
                entry = {"status": "done"}
            except (StageError, subprocess.TimeoutExpired, OSError, ValueError, KeyError) as error:
                entry = {"status": "failed", "reason": f"{type(error).__name__}: {str(error)[-2000:]}"}
            results[name] = {**entry, **figures, "seconds": round(time.monotonic() - began, 1)}
            document = {
                "made by": plain_object(provenance.describe_run()),
                "pretended": self._pretend,
                "stages": results,
            }
            write_atomically(self._out / "results.json", (json.dumps(document, indent=1) + "\n").encode())
            print(
                f"{name}: {results[name]['status']}, {results[name]['seconds']} s {entry.get('reason', '')}", flush=True
            )
        return all(result["status"] == "done" for result in results.values())

    def _start(self, module: str, *arguments: str) -> "subprocess.Popen[str]":
        """`python -m module arguments` in the directory of the runs; its stderr goes to the log."""
        self._log.write(f"\n$ python -m {module} {' '.join(arguments)}\n")
        self._log.flush()
        on_device = ["-m", "tests.pretend_cuda"] if self._pretend else []
        return subprocess.Popen(
            [sys.executable, *on_device, "-m", module, *arguments],
            cwd=self._work,
            env=self._environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # so that the processes that it starts end with it
        )

    def _python(self, module: str, *arguments: str, statuses: tuple[int, ...] = (0,)) -> str:
        """What `python -m module arguments` prints; within the time that is left to the stage."""
        process = self._start(module, *arguments)
        try:
            printed, _ = process.communicate(timeout=max(1.0, self._until - time.monotonic()))
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        self._log.write(printed)
        if process.returncode not in statuses:
            raise StageError(f"python -m {module}: exit status {process.returncode}\n{printed}")
        return printed

    def _summary(self, name: str) -> Any:
        """Return the summary.json of a run."""
        return json.loads((self._work / f"runs/{name}/summary.json").read_text(encoding="utf-8"))

    def _doctor(self, figures: dict[str, Any]) -> None:
        report = json.loads(self._python("app.doctor", "json=true", statuses=(0, 1)))
        figures["checks"] = [check for check in report["checks"] if check["verdict"] != "ok" or "gpu" in check["name"]]

    def _losses(self, name: str) -> list[float]:
        """Return the losses in a run's log."""
        lines = (self._work / f"runs/{name}/metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [event["loss"] for event in map(json.loads, lines) if event["event"] == "train"]

    def _quickstart(self, figures: dict[str, Any]) -> None:
        """One run on the GPU and one on the CPU: figures, and how far their losses are apart, relative to the CPU's."""
        self._python("app.train", "run.name=cpu", "runtime.platform=cpu", *self._quickstart_settings)
        self._train_whole()
        for name in ("whole", "cpu"):
            summary = self._summary(name)
            figures[name] = {
                "auc": summary["eval"]["auc"],
                **{key: summary[key] for key in ("digest", "memory", "power", "throughput")},
            }
        pairs = zip(self._losses("whole"), self._losses("cpu"), strict=True)
        differences = [abs(loss - of_cpu) / of_cpu for loss, of_cpu in pairs]
        figures["first_losses_differ_by"] = differences[:5]
        figures["losses_differ_by_at_most"] = max(differences)
        if differences[0] > FIRST_LOSS:
            raise StageError(f"the first logged losses of GPU and CPU differ by more than {FIRST_LOSS}")

    def _train_whole(self) -> None:
        """Train the quickstart on the GPU, undisturbed, unless an earlier stage has completed that."""
        if not (self._work / "runs/whole/summary.json").exists() or self._summary("whole")["status"] != "completed":
            afresh = ["checkpoint.resume=never", "checkpoint.overwrite=true"]
            self._python("app.train", "run.name=whole", *self._quickstart_settings, *afresh)

    def _kill(self, figures: dict[str, Any]) -> None:
        """A run with the quickstart's configuration that is killed: its digests must be the quickstart's."""
        killed = self._start("app.train", "run.name=killed", *self._quickstart_settings)
        checkpoints = self._work / "runs/killed/checkpoints"
        while killed.poll() is None and time.monotonic() < self._until and not (checkpoints / "latest").exists():
            time.sleep(0.02)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        self._python("app.train", "run.name=killed", *self._quickstart_settings)
        self._replay("killed", figures)
        self._train_whole()
        self._compare_digests(["whole", "killed"], figures)

    def _replay(self, name: str, figures: dict[str, Any]) -> None:
        """Verify a run."""
        figures["replayed"] = json.loads(self._python("app.verify", f"run=runs/{name}", statuses=(0, 1)))["verdict"]
        if figures["replayed"] != "identical":
            raise StageError(f"app.verify run={name}: {figures['replayed']}")

    def _compare_digests(self, names: list[str], figures: dict[str, Any]) -> None:
        """Require equal digests of runs."""
        digests = [self._summary(name)["digest"] for name in names]
        figures["same_digests"] = all(digest == digests[0] for digest in digests)
        if not figures["same_digests"]:
            raise StageError(f"digests of {', '.join(names)}: {json.dumps(digests)}")

    def _layout(self, figures: dict[str, Any]) -> None:
        """The quickstart in micro-batches, on one GPU and on two: their digests must be the same."""
        settings = [*self._quickstart_settings, "train.deterministic=layout"]
        names = ["layout"]
        self._python("app.train", "run.name=layout", *settings)
        if torch.cuda.device_count() > 1:
            launcher = ["--standalone", "--nproc-per-node=2", "-m", "app.train"]
            self._python("torch.distributed.run", *launcher, "run.name=layout_of_two", *settings)
            names.append("layout_of_two")
        figures["gpus"] = len(names)
        figures["throughput"] = [self._summary(name)["throughput"] for name in names]
        self._replay("layout", figures)
        self._compare_digests(names, figures)

    def _steps(self, figures: dict[str, Any]) -> None:
        """Operators at fp32, whole steps in each precision."""
        operators = "step,embedding_bag,interaction,mlp"
        if self._pretend:
            operators = "step"
        for precision in ("fp32", "bf16", "tf32"):
            for shape in self._shapes:
                measured = self._bench(
                    shape, precision, operators if precision == "fp32" else "step", "runtime.compile=none"
                )
                figures[f"{shape} {precision}"] = measured

    def _hstu(self, figures: dict[str, Any]) -> None:
        """Samples a second and last loss of HSTU by each kernel; a pretended device has no Triton."""
        if not (REPOSITORY / "extensions/sequences").is_dir():
            figures["left_out"] = "the extension sequences is not there"
            return
        settings = [*EVENTS, *(SHORT_EVENTS if self._pretend else []), "record.tensorboard=false", "baselines=false"]
        for attention in ("bucketed",) if self._pretend else ("bucketed", "triton"):
            self._python("app.train", f"run.name={attention}", f"sequences.hstu.attention={attention}", *settings)
            rate = self._summary(attention)["throughput"]["samples_per_second"]
            figures[attention] = {"samples_per_second": rate, "last_loss": self._losses(attention)[-1]}

    def _node(self, figures: dict[str, Any]) -> None:
        """Exchanges, steps and the quickstart on all GPUs of this machine, where there are several."""
        count = figures["gpus"] = torch.cuda.device_count()
        if count < 2:
            return
        launcher = ["--standalone", f"--nproc-per-node={count}", "-m"]
        out = self._work / "node.json"
        shape = ["operators=[collective,step]", "seconds=0.3", "shape.batch_size=8192", f"out={out}"]
        self._python("torch.distributed.run", *launcher, "app.bench", *shape)
        figures |= _cases(json.loads(out.read_text(encoding="utf-8")))
        self._python("torch.distributed.run", *launcher, "app.train", "run.name=node", *self._quickstart_settings)
        summary = self._summary("node")
        figures["auc"], figures["throughput"] = summary["eval"]["auc"], summary["throughput"]

    def _graphs(self, figures: dict[str, Any]) -> None:
        """The quickstart with CUDA graphs, the default, and by plain steps, in turn: equal digests; whole steps."""
        self._train_whole()
        rounds = 1 if self._pretend else 3
        settings = {"step": "runtime.compile=step", "none": "runtime.compile=none", "dense": "runtime.compile=dense"}
        if self._pretend:
            del settings["dense"]  # no compiler knows that device
        for name in [*settings, *(["step", "none"] * (rounds - 1))]:
            began = time.monotonic()
            afresh = ["checkpoint.resume=never", "checkpoint.overwrite=true"]
            self._python("app.train", f"run.name={name}", *self._quickstart_settings, settings[name], *afresh)
            measured = figures.setdefault(name, {"throughput": [], "seconds_with_start": []})
            measured["throughput"].append(self._summary(name)["throughput"])
            measured["seconds_with_start"].append(round(time.monotonic() - began, 1))
            measured["last_loss"] = self._losses(name)[-1]
        self._compare_digests(["whole", "step", "none"], figures)
        for precision in ("fp32", "bf16"):
            for shape in self._shapes:
                figures[f"{shape} {precision}"] = self._bench(shape, precision, "step", "runtime.compile=step")

    def _bench(self, shape: str, precision: str, operators: str, *overrides: str) -> dict[str, Any]:
        """Limits of the device, and the figures of each case of app.bench."""
        out = self._work / "bench.json"
        self._python(
            "app.bench",
            f"operators=[{operators}]",
            f"seconds={0.02 if self._pretend else 0.3}",
            *self._shapes[shape],
            f"runtime.precision={precision}",
            *overrides,
            f"out={out}",
        )
        return _cases(json.loads(out.read_text(encoding="utf-8")))

    def _trace(self, figures: dict[str, Any]) -> None:
        """Kernels of a step, and calls in which the host waits for the device; none but those of the log are meant."""
        self._python(
            "app.train",
            "run.name=traced",
            "train.max_steps=40",
            "train.log_every_steps=100",
            f"runtime.profile_steps=[{FIRST_TRACED},{LAST_TRACED}]",
            "record.tensorboard=false",
            "baselines=false",
            *(["data.scale=tiny"] if self._pretend else []),
        )
        (path,) = (self._work / "runs/traced").rglob("*.trace.json.gz")
        shutil.copy(path, self._out / "trace.json.gz")
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        kernels, waits = Counter[str](), Counter[str]()
        for event in events:
            if event.get("cat") == "kernel":
                kernels[event["name"][:100]] += event["dur"]
            elif event.get("cat") in ("cuda_runtime", "cuda_driver") and "Synchronize" in event["name"]:
                waits[event["name"]] += 1
        steps = LAST_TRACED - FIRST_TRACED + 1
        count = sum(event.get("cat") == "kernel" for event in events)
        figures["kernels_per_step"] = count / steps
        figures["waits_in_all_steps"] = waits
        figures["microseconds_per_step"] = {name: total / steps for name, total in kernels.most_common(25)}

    def _peers(self, figures: dict[str, Any]) -> None:
        sizes = (
            ["--quick"] if self._pretend else ["--batch", "8192", "--rows", "655360", "--max-cardinality", "1000000"]
        )
        out = self._work / "peers.json"
        # In turn, round by round: by graphs, by plain steps, and TorchRec's own.
        programs = ["--programs", "clickwork_plain", "torchrec_dlrm"]
        self._python("benchmarks.peers", *programs, "--device", "cuda", "--out", str(out), *sizes)
        measured = json.loads(out.read_bytes())["results"]["programs"]
        figures["samples_per_second"] = {name: program["samples_per_second"] for name, program in measured.items()}

    def _tests(self, figures: dict[str, Any]) -> None:
        """The tests marked gpu, or some of them on a pretended device."""
        selection = ["-n", str(max(4, (os.cpu_count() or 1) * 3 // 4))]
        files = [
            str(path) for path in sorted((REPOSITORY / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()
        ]
        if self._pretend:
            selection = ["-k", "deterministic_run", "-n", "0"]
        root = ["--rootdir", str(REPOSITORY), "-c", str(REPOSITORY / "pyproject.toml")]
        printed = self._python("pytest", "-m", "gpu", *files, *root, *selection, statuses=(0, 1))
        figures |= {kind: int(count) for count, kind in re.findall(r"(\d+) (passed|failed|skipped|error)", printed)}
        if "failed" in figures or "error" in figures or not figures.get("passed"):
            raise StageError(printed)


def _cases(measured: dict[str, Any]) -> dict[str, Any]:
    """Return ceilings and figures by case of a document of app.bench."""
    keys = ("median_ms", "p10_ms", "p90_ms", "samples_per_second", "share_of_bandwidth", "share_of_matrix_rate")
    figures = {result["name"]: {key: result[key] for key in keys} for result in measured["results"]}
    return {"ceilings": measured["ceilings"], **figures}


def main() -> int:
    """Run the stages; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--stages", nargs="+", choices=SHARES, default=[*SHARES])
    parser.add_argument("--shapes", nargs="+", choices=STEPS, default=[*STEPS], help="of the stages steps and graphs")
    parser.add_argument("--pretend", action="store_true")
    arguments = parser.parse_args()
    if not arguments.pretend and not torch.cuda.is_available():
        parser.error("torch sees no GPU here; `python -m app.doctor` looks for the reason, --pretend tries the program")
    first_run = FirstRun(arguments.out.resolve(), 60 * arguments.minutes, arguments.pretend, arguments.shapes)
    return 0 if first_run.run(arguments.stages) else 1


if __name__ == "__main__":
    sys.exit(main())
