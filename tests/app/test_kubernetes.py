"""The manifests in launch/kubernetes: against the schemas of what reads them, and run in two network namespaces."""

import copy
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api import models

from common.cli import EXIT_BAD_INPUT, EXIT_STOPPED
from common.compose import compose_config
from data_prep.config import CONFIG_DIRECTORY, PrepConfig
from tests.app.conftest import REPOSITORY
from tests.app.machines import ADDRESSES, DISTURBED, lose, num_checkpoints, two_machines, undisturbed
from tests.app.run_files import summary
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
    """Two machines, each with one pod of a job."""

    hosts: list[str]  # their namespaces
    folder: Path  # the shared volume
    arguments: list[str]  # given to each pod after its own
    disturbances: list[Callable[["Cluster"], None]]  # called in turn, each when there are new checkpoints
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
                rules = job["podFailurePolicy"]["rules"]
                of_status = [rule for rule in rules if status in rule.get("onExitCodes", {"values": []})["values"]]
                action = of_status[0]["action"] if of_status else "Count"
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
        """End all pods as the kubelet does; their statuses."""
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


def delete_a_pod(cluster: Cluster) -> None:
    cluster.pods[1].send_signal(signal.SIGTERM)


def kill_a_pod(cluster: Cluster) -> None:
    lose(cluster.hosts[1])


def preempt(cluster: Cluster) -> None:
    cluster.is_suspended = True


GRACE_SECONDS = 300
MODELS = {
    "JobSet": models.JobsetV1alpha2JobSet,
    "TrainJob": models.TrainerV1alpha1TrainJob,
    "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
}


def job_of(file: str) -> Document:
    """The Indexed Job that trains, whatever makes it of a file's documents."""
    documents = manifest(file)
    if file == "job.yaml":
        return documents["Job"]["spec"]
    jobset = documents["JobSet"] if file == "jobset.yaml" else as_jobset(documents)
    return jobset["spec"]["replicatedJobs"][0]["template"]["spec"]


@pytest.mark.parametrize("path", sorted(MANIFESTS.glob("*.yaml")), ids=lambda path: path.name)
def test_each_document_has_the_fields_of_its_kind(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        if document["kind"] in MODELS:
            model = MODELS[document["kind"]].from_dict(document)
            assert model is not None
            assert json.loads(json.dumps(model.to_dict())) == document  # a misspelt field would be lost
            spec = document["spec"].get("template", document)["spec"] if document["kind"] != "TrainJob" else {}
            for job in spec.get("replicatedJobs", []):
                inner = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, **job["template"]}
                kubernetes_validate.validate(inner, "1.36", strict=True)
        else:
            kubernetes_validate.validate(document, "1.36", strict=True)


def test_what_a_pod_is_given() -> None:
    job = job_of("jobset.yaml")
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 2, 2)
    assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"]) == ("Never", GRACE_SECONDS)
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert variables["PET_NPROC_PER_NODE"] == str(container["resources"]["limits"]["amd.com/gpu"])
    folder = entry_point()[1]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts.keys() == {f"{folder}/data", f"{folder}/runs", "/dev/shm"}
    assert {mounts[f"{folder}/{name}"]["subPath"] for name in ("data", "runs")} == {"data", "runs"}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in mounts.values()} == volumes.keys()
    assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
    claim = manifest("storage.yaml")["PersistentVolumeClaim"]
    assert volumes["shared"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_the_service_selects_the_pods_of_the_job() -> None:
    documents = manifest("job.yaml")
    service, job = documents["Service"], documents["Job"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]


def test_a_jobset_and_a_trainjob_are_the_same_pods() -> None:
    jobset, trainjob = manifest("jobset.yaml")["JobSet"], as_jobset(manifest("trainjob.yaml"))
    del trainjob["spec"]["replicatedJobs"][0]["template"]["metadata"]
    assert trainjob["spec"] == jobset["spec"]
    job = manifest("job.yaml")["Job"]["spec"]["template"]["spec"]
    pod = job_of("jobset.yaml")["template"]["spec"]
    for one in (job, pod):
        one["containers"][0]["env"] = [env for env in one["containers"][0]["env"] if env["name"] != "PET_MASTER_ADDR"]
    assert {key: value for key, value in job.items() if key != "subdomain"} == pod


def test_what_is_trained_on_is_what_is_prepared() -> None:
    (container,) = manifest("data_prep.yaml")["Job"]["spec"]["template"]["spec"]["containers"]
    module, *overrides = container["args"]
    assert module == "data_prep"
    assert compose_config(PrepConfig, CONFIG_DIRECTORY, overrides).data.path == "data/synthetic"
    assert container["volumeMounts"] == [{"name": "shared", "mountPath": f"{entry_point()[1]}/data", "subPath": "data"}]


def run(folder: Path, file: str, arguments: list[str], disturbances: Sequence[Callable[[Cluster], None]]) -> Cluster:
    """A file's job in two namespaces; `arguments` come after its own."""
    documents = manifest(file)
    with two_machines() as hosts:
        cluster = Cluster(hosts, folder, arguments, [*disturbances])
        if file == "job.yaml":
            job = documents["Job"]
            cluster.run_job(job["metadata"]["name"], documents["Service"]["metadata"]["name"], job["spec"])
        else:
            cluster.run_jobset(documents["JobSet"])
    return cluster


@pytest.mark.slow("container")
@pytest.mark.parametrize("file", ["job.yaml", "jobset.yaml"])
def test_a_refusal_fails_a_job_at_once(tmp_path: Path, file: str) -> None:
    cluster = run(tmp_path, file, ["train.epocs=1"], [])
    assert (cluster.result, cluster.statuses) == ("Failed", [{EXIT_BAD_INPUT}])
    logs = [(tmp_path / f"pod_{index}.log").read_text() for index in range(2)]
    assert any("did you mean train.epochs?" in log for log in logs), logs


KILLED = 128 + signal.SIGKILL


@pytest.mark.slow("container")
@pytest.mark.parametrize(
    ("file", "disturbances", "statuses"),
    [
        ("job.yaml", [kill_a_pod, preempt], [{0, EXIT_STOPPED, KILLED}]),
        pytest.param("jobset.yaml", [delete_a_pod], [{EXIT_STOPPED}, {0}], marks=pytest.mark.slow),
    ],
    ids=["pods start again", "all start again"],
)
def test_a_disturbed_job_completes_to_the_same_bits(
    dataset: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    file: str,
    disturbances: list[Callable[[Cluster], None]],
    statuses: list[set[int]],
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/synthetic").symlink_to(dataset)
    cluster = run(tmp_path, file, DISTURBED, disturbances)
    log = "".join((tmp_path / f"pod_{index}.log").read_text() for index in range(2))
    assert (cluster.result, cluster.statuses, cluster.disturbances) == ("Complete", statuses, []), log
    digest = summary(undisturbed(tmp_path_factory, dataset))["digest"]
    assert summary(tmp_path / "runs/mine")["digest"] == digest
