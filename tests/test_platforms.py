"""Recipes: the snippets of docs/platforms.md and the files of `deploy/` are parsed and compared with the schemas and
option lists of the programs that read them, as far as those are installed.

The tests of clusters run the commands of the compose file.
"""

import inspect
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import boto3
import dagster as dg
import kubernetes_validate
import pytest
import yaml
from botocore.validate import ParamValidator
from dagster_aws.pipes import PipesEMRClient, PipesEMRServerlessClient

from lance_assets import RemoteWrite
from lance_assets.spark.java import ensure_java
from tests.clusters.deployments import HOME

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/platforms.md").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text())
KUBERNETES_VERSION = "1.34"
ENVIRONMENT = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "LAKE": "s3://lake",
    "SPARK_DRIVER_HOST": "127.0.0.1",
    "SPARK_MASTER": "spark://127.0.0.1:7077",
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def json_block(heading: str) -> dict[str, Any]:
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    (text,) = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def test_aws_knows_the_parameters() -> None:
    """Every field of the two requests exists in the service models of AWS, and every required one is there."""
    for heading, service, operation, client, argument in (
        ("EMR", "emr", "RunJobFlow", PipesEMRClient, "run_job_flow_params"),
        ("EMR Serverless", "emr-serverless", "StartJobRun", PipesEMRServerlessClient, "start_job_run_params"),
    ):
        model = boto3.client(service, region_name="eu-west-1").meta.service_model.operation_model(operation)
        report = ParamValidator().validate(json_block(heading), model.input_shape)
        assert not report.has_errors(), report.generate_report()
        assert argument in PAGE
        assert argument in inspect.signature(client.run).parameters
    wrong = ParamValidator().validate(
        {**json_block("EMR"), "Release": "7"},
        boto3.client("emr", region_name="eu-west-1").meta.service_model.operation_model("RunJobFlow").input_shape,
    )
    assert wrong.has_errors()


def test_json_without_an_installed_schema_is_parsed() -> None:
    assert json_block("Databricks")["spark_python_task"]["python_file"].endswith("/load_orders.py")
    assert json_block("Dataproc")["job"]["pyspark_job"]["main_python_file_uri"].endswith("/load_orders.py")


@pytest.mark.parametrize("path", sorted(ROOT.glob("deploy/kubernetes/*.yaml")), ids=lambda path: path.name)
def test_manifests_follow_the_schemas_of_kubernetes(path: Path) -> None:
    documents = list(yaml.safe_load_all(path.read_text()))
    for document in documents:
        kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)
    assert {each["kind"] for each in documents} == {"Job", "Role", "RoleBinding", "ServiceAccount"}
    documents[-1]["spec"]["template"]["spec"]["restartPolicies"] = "Never"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(documents[-1], KUBERNETES_VERSION, strict=True)


def declared_writes() -> list[RemoteWrite]:
    """Run the Python blocks of the page, and return what each declares."""
    writes = []
    for block in blocks("py"):
        names: dict[str, Any] = {}
        exec(compile(block, "platforms.md", "exec"), names)
        writes.append(names["load"])
    assert all(isinstance(write, RemoteWrite) for write in writes)
    return writes


def test_pod_of_the_recipe_follows_the_schema() -> None:
    write = next(each for each in declared_writes() if isinstance(each.launch, Mapping) and "image" in each.launch)
    launch = write.launch
    assert isinstance(launch, Mapping)
    spec: Any = launch["base_pod_spec"]
    (container,) = spec["containers"]
    container |= {"image": launch["image"], "command": launch["command"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "driver"}, "spec": spec}
    kubernetes_validate.validate(pod, KUBERNETES_VERSION, strict=True)


def commands() -> Iterator[str]:
    """Yield the texts that submit applications: of the page, of the manifests and of the compose project."""
    yield from blocks("sh")
    yield from blocks("py")
    yield json.dumps([json_block("EMR"), json_block("EMR Serverless")])
    for path in ("deploy/kubernetes/spark.yaml", "deploy/compose/project.py"):
        yield (ROOT / path).read_text()


def test_spark_submit_has_the_options() -> None:
    ensure_java()
    shown = subprocess.run([HOME / "bin/spark-submit", "--help"], capture_output=True, text=True, check=False).stderr
    known = set(re.findall(r"--[a-z-]+", shown))
    used = {
        option
        for text in commands()
        for command in re.findall(r"spark-submit(.*?)(?:load_orders|count_rows|APPLICATION|\Z)", text, re.DOTALL)
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", command)
    }
    assert {"--master", "--conf", "--deploy-mode", "--archives"} <= used
    assert used - known - {"--dagster-pipes-context", "--dagster-pipes-messages"} == set()


@pytest.mark.parametrize("script", blocks("sh"))
def test_shell_snippets_are_shell(script: str) -> None:
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)


def test_services_of_the_compose_file_fit_together() -> None:
    services: dict[str, dict[str, Any]] = COMPOSE["services"]
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in services, name
            assert how["condition"] != "service_healthy" or "healthcheck" in services[other], name
        for value in service.get("environment", {}).values():
            for host in re.findall(r"(?:://|@)([a-z-]+):\d+", str(value)):
                assert host in services, (name, host)
        assert ":" in service["image"] or "build" in service, name
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in COMPOSE["volumes"], name
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name
        if "build" in service:
            folder = ROOT / "deploy/compose" / service["build"]["context"]
            assert (folder / service["build"]["dockerfile"]).is_file()
    workspace = yaml.safe_load((ROOT / "deploy/compose/workspace.yaml").read_text())
    (server,) = (each["grpc_server"] for each in workspace["load_from"])
    assert server["host"] in services
    assert str(server["port"]) in services[server["host"]]["command"]


def test_dockerfile_copies_files_that_exist() -> None:
    text = (ROOT / "deploy/Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        for path in line.split()[:-1]:
            assert (ROOT / path).exists(), path
    extras = re.findall(r"lance-assets\[([a-z0-9,]+)\]", text)[0].split(",")
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) <= set(known)


def test_project_of_the_compose_file_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    spec = spec_from_file_location("compose_project", ROOT / "deploy/compose/project.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    dg.Definitions.validate_loadable(module.defs)
    missing = ENVIRONMENT.keys() - COMPOSE["x-lance"]["environment"].keys()
    assert not missing
