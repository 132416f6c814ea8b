"""The manifests in launch/kubernetes: against the schemas of what reads them, and run in two network namespaces."""

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api import models

from common.cli import EXIT_BAD_INPUT, EXIT_STOPPED
from common.compose import compose_config
from data_prep.config import CONFIG_DIRECTORY, PrepConfig
from tests.app import pods
from tests.app.machines import DISTURBED, two_machines, undisturbed
from tests.app.pods import Cluster, Document, as_jobset, entry_point, manifest
from tests.app.run_files import summary

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


@pytest.mark.parametrize("path", sorted(pods.MANIFESTS.glob("*.yaml")), ids=lambda path: path.name)
def test_each_document_has_the_fields_of_its_kind(path: Path) -> None:
    """Kubernetes' own kinds and the pods' templates by its schemas; others by the models of Kubeflow Trainer."""
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


@pytest.mark.parametrize("file", ["job.yaml", "jobset.yaml", "trainjob.yaml"])
def test_what_a_pod_is_given(file: str) -> None:
    job = job_of(file)
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 2, 2)
    assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"]) == ("Never", GRACE_SECONDS)
    variables = {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}
    name = "clickwork-0" if file == "job.yaml" else "clickwork-node-0-0"
    assert variables == {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": str(container["resources"]["limits"]["amd.com/gpu"]),
        "PET_NODE_RANK": {"fieldRef": {"fieldPath": pods.COMPLETION_INDEX}},
        "PET_MASTER_ADDR": f"{name}.clickwork",
        "PET_MASTER_PORT": "29500",
    }
    assert container["args"] == ["app.launch", "-m", "app.train", "run.name=mine", "data.path=data/synthetic"]
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


def test_what_is_trained_on_is_what_is_prepared(tmp_path: Path) -> None:
    pod = manifest("data_prep.yaml")["Job"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
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
            cluster.run_jobset(documents["JobSet"] if file == "jobset.yaml" else as_jobset(documents))
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
        pytest.param("trainjob.yaml", [], [{0}], marks=pytest.mark.slow),
        ("job.yaml", [pods.kill_a_pod, pods.preempt], [{0, EXIT_STOPPED, KILLED}]),
        pytest.param("jobset.yaml", [pods.delete_a_pod], [{EXIT_STOPPED}, {0}], marks=pytest.mark.slow),
    ],
    ids=["undisturbed", "pods start again", "all start again"],
)
def test_a_disturbed_job_completes_to_the_same_bits(
    dataset: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    file: str,
    disturbances: list[Callable[[Cluster], None]],
    statuses: list[set[int]],
) -> None:
    """Pods deleted, killed, preempted, with the manifest's commands, arguments, variables and policies.

    statuses: those of the pods, attempt by attempt.
    """
    (tmp_path / "data").mkdir()
    (tmp_path / "data/synthetic").symlink_to(dataset)
    cluster = run(tmp_path, file, DISTURBED, disturbances)
    log = "".join((tmp_path / f"pod_{index}.log").read_text() for index in range(2))
    assert (cluster.result, cluster.statuses, cluster.disturbances) == ("Complete", statuses, []), log
    digest = summary(undisturbed(tmp_path_factory, dataset))["digest"]
    assert summary(tmp_path / "runs/mine")["digest"] == digest
