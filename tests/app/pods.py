"""What Kubernetes makes of the manifests in launch/: a stand-in for its controllers and for what starts containers.

Commands, arguments, variables and policies are read from the manifests, the entry point from the image's Dockerfile.
"""

import copy
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.app.conftest import REPOSITORY
from tests.app.machines import ADDRESSES, lose, num_checkpoints
from tests.fast_python import fast_python

MANIFESTS = REPOSITORY / "launch/kubernetes"
COMPLETION_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
# In a namespace of its own: /etc/hosts as the pod has it, its host name, and its command in its place.
START = 'mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"'

Document = dict[str, Any]


def manifest(name: str) -> dict[str, Document]:
    """The documents of a file of launch/kubernetes, by their kind."""
    return {document["kind"]: document for document in yaml.safe_load_all((MANIFESTS / name).read_text())}


def entry_point() -> tuple[list[str], str]:
    """The images' entry point and working directory."""
    text = (REPOSITORY / "Dockerfile.rocm").read_text()
    (folder,) = set(re.findall(r"^WORKDIR (\S+)", text, re.MULTILINE))
    (command,) = set(re.findall(r"^ENTRYPOINT (.*)", text, re.MULTILINE))
    return json.loads(command), folder


def as_jobset(documents: dict[str, Document]) -> Document:
    """The JobSet that Trainer v2.3 makes of a TrainingRuntime and a TrainJob (plugins torch and jobset)."""
    train_job, runtime = documents["TrainJob"], documents["TrainingRuntime"]["spec"]
    name, trainer = train_job["metadata"]["name"], train_job["spec"]["trainer"]
    spec = copy.deepcopy(runtime["template"]["spec"])
    (job,) = [
        job
        for job in spec["replicatedJobs"]
        if job["template"]["metadata"]["labels"].get("trainer.kubeflow.org/trainjob-ancestor-step") == "trainer"
    ]
    job["template"]["spec"] |= {"completions": trainer["numNodes"], "parallelism": trainer["numNodes"]}
    (node,) = [one for one in job["template"]["spec"]["template"]["spec"]["containers"] if one["name"] == "node"]
    node |= {"args": trainer["args"], "resources": trainer["resourcesPerNode"]}
    node["env"] = [
        {"name": "PET_NNODES", "value": str(trainer["numNodes"])},
        {"name": "PET_NPROC_PER_NODE", "value": str(trainer["numProcPerNode"])},
        {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": COMPLETION_INDEX}}},
        {"name": "PET_MASTER_ADDR", "value": f"{name}-node-0-0.{name}"},
        {"name": "PET_MASTER_PORT", "value": "29500"},
    ]
    return {"kind": "JobSet", "metadata": {"name": name}, "spec": spec}


@dataclass
class Cluster:
    """Two machines, each with one pod of a job.

    Args:
        hosts: their namespaces.
        folder: the shared volume.
        arguments: given to each pod after its own.
        disturbances: called one after the other with the pods under way, each when there are new checkpoints.
    """

    hosts: list[str]
    folder: Path
    arguments: list[str]
    disturbances: list[Callable[["Cluster"], None]] = field(default_factory=list)
    pods: dict[int, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    statuses: list[set[int]] = field(default_factory=list)  # of pods, but those that were ended: attempt by attempt
    is_suspended: bool = False
    result: str = ""  # Complete or Failed
    _next_at: int = 1  # number of checkpoints

    def run_job(self, name: str, subdomain: str, job: Document) -> None:
        self.result = "Complete" if self._reason_of_failure(name, subdomain, job) is None else "Failed"

    def _reason_of_failure(self, name: str, subdomain: str, job: Document) -> str | None:
        failures, waiting = 0, set(range(job["completions"]))
        self.statuses.append(set())
        while waiting or self.pods:
            if self.disturbances and num_checkpoints(self.folder / "runs/mine") >= self._next_at:
                self._next_at += 2
                self.disturbances.pop(0)(self)
            if self.is_suspended:
                waiting |= set(self.pods)
                self.statuses[-1] |= self.stop()
                self.is_suspended = False
            for index in waiting:
                self.pods[index] = self._start(name, subdomain, job["template"]["spec"], index)
            waiting.clear()
            for index, status in self._ended():
                self.statuses[-1].add(status)
                if status == 0:
                    continue
                action = _action(job, status)
                failures += action != "Ignore"
                if action == "FailJob" or failures > job["backoffLimit"]:
                    self.stop()
                    return "PodFailurePolicy" if action == "FailJob" else "BackoffLimitExceeded"
                waiting.add(index)
            time.sleep(1 if waiting else 0.05)  # the controller's delay, shortened
        return None

    def run_jobset(self, jobset: Document) -> None:
        """Run a JobSet of one Job to its end."""
        spec, name = jobset["spec"], jobset["metadata"]["name"]
        (job,) = spec["replicatedJobs"]
        for _ in range(1 + spec["failurePolicy"]["maxRestarts"]):
            reason = self._reason_of_failure(f"{name}-{job['name']}-0", name, job["template"]["spec"])
            self.result = "Complete" if reason is None else "Failed"
            rules = [rule for rule in spec["failurePolicy"]["rules"] if reason in rule["onJobFailureReasons"]]
            if reason is None or (rules and rules[0]["action"] == "FailJobSet"):
                break

    def stop(self) -> set[int]:
        """End all pods as the kubelet does; with which statuses they ended."""
        for pod in self.pods.values():
            pod.send_signal(signal.SIGTERM)
        for pod in self.pods.values():
            pod.wait(300)
        return {status for _, status in self._ended()}

    def _ended(self) -> Iterator[tuple[int, int]]:
        for index, pod in list(self.pods.items()):
            if (status := pod.poll()) is not None:
                del self.pods[index]
                yield index, status if status >= 0 else 128 - status

    def _start(self, name: str, subdomain: str, pod: Document, index: int) -> "subprocess.Popen[bytes]":
        """The pod's one container, with the mounts of data/ and runs/ as folders of the shared volume."""
        (container,) = pod["containers"]
        command = [*container.get("command", entry_point()[0]), *container["args"], *self.arguments]
        of_index = {"fieldRef": {"fieldPath": COMPLETION_INDEX}}
        assert all(one["valueFrom"] == of_index for one in container["env"] if "value" not in one)
        variables = {one["name"]: one.get("value", str(index)) for one in container["env"]}
        variables["PET_NPROC_PER_NODE"] = "1"  # not eight, of which each has a GPU
        names = [f"{address} {name}-{number}.{subdomain}" for number, address in enumerate(ADDRESSES)]
        hosts = self.folder / f"hosts_{index}"
        hosts.write_text("\n".join(["127.0.0.1 localhost", *names, f"{ADDRESSES[index]} {name}-{index}"]) + "\n")
        path = f"{fast_python().parent}:{os.environ['PATH']}"
        with open(self.folder / f"pod_{index}.log", "ab") as log:
            environment = {"PATH": path, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **variables}
            enter = ["ip", "netns", "exec", self.hosts[index], "unshare", "--uts", "sh", "-c", START, str(hosts)]
            words = [*enter, f"{name}-{index}", *command]
            return subprocess.Popen(words, cwd=self.folder, stdout=log, stderr=log, env=environment)


def _action(job: Document, status: int) -> str:
    for rule in job["podFailurePolicy"]["rules"]:
        if status in rule.get("onExitCodes", {"values": []})["values"]:
            return str(rule["action"])
    return "Count"


def delete_a_pod(cluster: Cluster) -> None:
    """As `kubectl delete pod` does."""
    cluster.pods[1].send_signal(signal.SIGTERM)


def kill_a_pod(cluster: Cluster) -> None:
    """As when its machine is lost."""
    lose(cluster.hosts[1])


def preempt(cluster: Cluster) -> None:
    """Suspend all, and resume."""
    cluster.is_suspended = True
