"""The manifests in launch/kubernetes: against the schemas of what reads them, each other and the exit statuses."""

import json
import re
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

MANIFESTS = REPOSITORY / "launch/kubernetes"
MODELS = {
    "JobSet": models.JobsetV1alpha2JobSet,
    "TrainJob": models.TrainerV1alpha1TrainJob,
    "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
}
(FOLDER,) = set(re.findall(r"^WORKDIR (\S+)", (REPOSITORY / "Dockerfile.rocm").read_text(), re.MULTILINE))


def manifest(name: str) -> dict[str, Any]:
    """The documents of a file of launch/kubernetes, by their kind."""
    return {document["kind"]: document for document in yaml.safe_load_all((MANIFESTS / name).read_text())}


def jobs() -> list[dict[str, Any]]:
    """The Indexed Jobs that train."""
    jobset = manifest("jobset.yaml")["JobSet"]["spec"]
    runtime = manifest("trainjob.yaml")["TrainingRuntime"]["spec"]["template"]["spec"]
    of_sets = [each["template"]["spec"] for one in (jobset, runtime) for each in one["replicatedJobs"]]
    return [manifest("job.yaml")["Job"]["spec"], *of_sets]


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


def test_refused_jobs_fail_at_once_and_stopped_ones_go_on() -> None:
    rules = [{rule["action"]: rule.get("onExitCodes") for rule in job["podFailurePolicy"]["rules"]} for job in jobs()]
    assert [rule["FailJob"]["values"] for rule in rules] == [[EXIT_BAD_INPUT]] * len(rules)
    counted = manifest("job.yaml")["Job"]["spec"]["podFailurePolicy"]["rules"]
    assert [EXIT_STOPPED] in [rule["onExitCodes"]["values"] for rule in counted if "onExitCodes" in rule]
    (rule,) = manifest("jobset.yaml")["JobSet"]["spec"]["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])


def test_what_a_pod_is_given() -> None:
    documents, claim = manifest("job.yaml"), manifest("storage.yaml")["PersistentVolumeClaim"]
    service, job = documents["Service"], documents["Job"]
    pod = job["spec"]["template"]["spec"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert pod["subdomain"] == service["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    (container,) = pod["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert variables["PET_NPROC_PER_NODE"] == str(container["resources"]["limits"]["amd.com/gpu"])
    assert {m["mountPath"] for m in container["volumeMounts"]} == {f"{FOLDER}/data", f"{FOLDER}/runs", "/dev/shm"}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["shared"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    (prepares,) = manifest("data_prep.yaml")["Job"]["spec"]["template"]["spec"]["containers"]
    module, *overrides = prepares["args"]
    assert module == "data_prep"
    assert compose_config(PrepConfig, CONFIG_DIRECTORY, overrides).data.path == "data/synthetic"
    assert {"name": "shared", "mountPath": f"{FOLDER}/data", "subPath": "data"} in container["volumeMounts"]
