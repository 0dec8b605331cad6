"""Files in ``examples/shop/deploy``: their values fit each other, the code and mongoq; what can run here is run."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.shop.__main__ import REQUEST_SECONDS
from examples.shop.settings import Settings
from tests.docs.commands import check_command
from tests.examples.shop_processes import ROOT, ShopProcess

DEPLOY = ROOT / "examples" / "shop" / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
MARGIN_SECONDS = 5
"""Seconds that the last settlements and the closing of connections may take."""
SUPERVISOR_SECONDS = 10
"""Seconds after the grace in which a supervisor kills its processes."""


def read_documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def read_workloads() -> dict[str, dict[str, Any]]:
    documents = [document for path in KUBERNETES.glob("*.yaml") for document in read_documents(path)]
    return {each["metadata"]["name"]: each for each in documents if each["kind"] == "Deployment"}


def container_of(workload: Mapping[str, Any]) -> dict[str, Any]:
    [container] = workload["spec"]["template"]["spec"]["containers"]
    return dict(container)


def read_dockerfile() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines()) if word]


def image_environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for word, rest in read_dockerfile() if word == "ENV" for pair in shlex.split(rest))


def read_unit(name: str) -> dict[str, list[str]]:
    unit: dict[str, list[str]] = {}
    for line in (DEPLOY / name).read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            unit.setdefault(key, []).append(value)
    return unit


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))


class RecordingEnvironment(dict[str, str]):
    """Environment that notes which variables are read."""

    def __init__(self) -> None:
        super().__init__(MONGOQ_URI="mongodb://h/")
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)


def find_variables() -> set[str]:
    environment = RecordingEnvironment()
    Settings.from_environment(environment)
    return environment.names


# --- all files -----------------------------------------------------------------------------------


def test_every_variable_is_one_that_the_shop_reads() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    named = [name for service in compose.values() for name in service.get("environment", {})]
    named += [each["name"] for workload in read_workloads().values() for each in container_of(workload)["env"]]
    named += [name for name in image_environment() if not name.startswith("PYTHON")]
    for unit in ("shop-app.service", "shop-worker.service"):
        named += [pair.split("=")[0] for pair in read_unit(unit)["Environment"][0].split()]
    assert len(named) > 10
    assert set(named) <= find_variables()


def test_no_file_holds_a_password() -> None:
    for path in [*DEPLOY.iterdir(), *KUBERNETES.iterdir()]:
        if path.is_file():
            for login in re.findall(r"mongodb(?:\+srv)?://([^@\s/]+)@", path.read_text()):
                assert login == "USER:PASSWORD", path.name


def stop_periods() -> Iterator[tuple[str, float, float]]:
    """Name, seconds until the kill, and the seconds that the process may take to end, of each process."""
    for name, workload in read_workloads().items():
        container = container_of(workload)
        own = {each["name"]: each.get("value") for each in container["env"]}
        needed = (
            float(own["SHOP_GRACE"])
            + container.get("lifecycle", {}).get("preStop", {"sleep": {"seconds": 0}})["sleep"]["seconds"]
        )
        yield name, workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"], needed
    for name, service in yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].items():
        if "environment" in service:
            yield f"compose {name}", seconds(service["stop_grace_period"]), float(service["environment"]["SHOP_GRACE"])
    for name in ("shop-app.service", "shop-worker.service"):
        unit = read_unit(name)
        own = dict(pair.split("=") for pair in unit["Environment"][0].split())
        beyond = SUPERVISOR_SECONDS if "--processes" in unit["ExecStart"][0] else 0
        yield name, seconds(unit["TimeoutStopSec"][0]), float(own["SHOP_GRACE"]) + beyond


@pytest.mark.parametrize(("name", "limit", "needed"), list(stop_periods()), ids=lambda value: str(value))
def test_a_process_is_not_killed_within_its_grace(name: str, limit: float, needed: float) -> None:
    requests = REQUEST_SECONDS if "app" in name else 0
    assert limit >= needed + requests + MARGIN_SECONDS


def all_commands() -> dict[str, list[str]]:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return {
        "compose worker": compose["worker"]["command"],
        "kubernetes": container_of(read_workloads()["shop-worker"])["command"],
        "systemd": ["mongoq", *shlex.split(read_unit("shop-worker.service")["ExecStart"][0])[1:]],
    }


@pytest.mark.parametrize("name", list(all_commands()))
def test_every_command_is_one_of_mongoq(name: str) -> None:
    check_command(all_commands()[name])


# --- the image -----------------------------------------------------------------------------------


def command_of_image() -> list[str]:
    [command] = [rest for word, rest in read_dockerfile() if word == "CMD"]
    return list(json.loads(command))


def test_the_image_is_run_by_no_root_and_has_no_secret() -> None:
    lines = read_dockerfile()
    assert [rest for word, rest in lines if word == "USER"] == ["10001:10001"]
    assert not [rest for word, rest in lines if word == "ARG"]
    assert not {name for name in image_environment() if "URI" in name or "SECRET" in name or "PASSWORD" in name}
    for workload in read_workloads().values():
        assert workload["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == 10001


def test_the_first_process_of_the_container_gets_sigterm() -> None:
    words = [word for word, _ in read_dockerfile()]
    assert "ENTRYPOINT" not in words
    assert command_of_image()[0] == "python"  # a list: json.loads has read it
    assert dict(read_dockerfile())["STOPSIGNAL"] == "SIGTERM"
    for service in yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values():
        assert isinstance(service.get("command", []), list)


def test_the_builder_gets_what_the_image_copies() -> None:
    patterns = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    sources = [
        source
        for word, rest in read_dockerfile()
        if word == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    ]
    assert len(sources) > 5
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source.split("/")[0], pattern) for pattern in allowed), source


def test_the_wheel_can_be_built_of_what_the_builder_gets(tmp_path: Path) -> None:
    for word, rest in read_dockerfile():
        if word == "COPY" and "examples" not in rest:
            *sources, target = rest.split()
            for source in sources:
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, tmp_path / target, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(ROOT / source, tmp_path / target)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "out"), "."]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.suffix for path in (tmp_path / "out").iterdir()] == [".whl"]


# --- probes: the processes are run ---------------------------------------------------------------


@pytest.fixture
def start(own_uri: str) -> Iterator[Any]:
    started: list[ShopProcess] = []

    def start(command: list[str], environment: dict[str, str]) -> ShopProcess:
        started.append(ShopProcess(command, {**environment, "MONGOQ_URI": own_uri}))
        return started[-1]

    yield start
    for process in started:
        process.close()


def paths_of(name: str) -> set[str]:
    """Paths that Kubernetes and Prometheus ask a workload for, whose port is that of its container."""
    workload = read_workloads()[name]
    container = container_of(workload)
    [port] = container["ports"]
    annotations = workload["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port["containerPort"])
    probes = {kind: container[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert (probes["livenessProbe"]["path"], probes["readinessProbe"]["path"]) == ("/healthz", "/readyz")
    return {probe["path"] for probe in probes.values()} | {annotations["prometheus.io/path"]}


@pytest.mark.prove
def test_the_command_of_the_worker_serves_what_is_probed(start: Any) -> None:
    command = container_of(read_workloads()["shop-worker"])["command"]
    address = command[command.index("--http") + 1]
    assert address == f"0.0.0.0:{container_of(read_workloads()['shop-worker'])['ports'][0]['containerPort']}"
    own = [sys.executable, "-m", *(word if word != address else "127.0.0.1:0" for word in command)]
    worker = start(own, {})
    worker.wait_until_ready()
    worker.wait_until_answered(*paths_of("shop-worker"))
    worker.terminate()
    assert worker.end() == 0


class Probed(BaseHTTPRequestHandler):
    """Answers ``/readyz`` with the status that the server has."""

    def do_GET(self) -> None:
        self.send_response(self.server.status if self.path == "/readyz" else 404)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("service", ["app", "worker"])
def test_the_health_check_of_compose_asks_whether_the_process_is_ready(service: str) -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    port = {"app": image_environment()["SHOP_PORT"], "worker": services["worker"]["command"][4].partition(":")[2]}
    kind, *command = services[service]["healthcheck"]["test"]
    assert kind == "CMD"
    with ThreadingHTTPServer(("127.0.0.1", 0), Probed) as server:
        place = f"/127.0.0.1/{port[service]} "
        assert place in command[-1]
        script = command[-1].replace(place, f"/127.0.0.1/{server.server_port} ").replace("$$", "$")
        command[-1] = script.replace("-t 3 ", "-t 60 ")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for server.status, expected in ((200, 0), (503, 1)):  # type: ignore[attr-defined]
            assert subprocess.run(command, timeout=120, check=False).returncode == expected
        server.shutdown()
    assert subprocess.run(command, timeout=30, check=False, capture_output=True).returncode != 0


# --- Compose and Kubernetes ----------------------------------------------------------------------


def test_mongodb_of_compose_is_a_replica_set_that_is_reachable_from_the_services_alone() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    name = services["mongo"]["command"][2]
    assert services["mongo"]["command"][:2] == ["mongod", "--replSet"]
    assert f'_id: "{name}"' in services["mongo"]["healthcheck"]["test"][-1]
    assert "ports" not in services["mongo"]
    for each in (services["app"], services["worker"]):
        assert f"replicaSet={name}" in each["environment"]["MONGOQ_URI"]
        assert each["depends_on"] == {"mongo": {"condition": "service_healthy"}}


def test_labels_and_secrets_of_the_manifests_fit() -> None:
    documents = [document for path in KUBERNETES.glob("*.yaml") for document in read_documents(path)]
    secrets = {each["metadata"]["name"]: set(each["stringData"]) for each in documents if each["kind"] == "Secret"}
    workloads = read_workloads()
    for workload in workloads.values():
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert workload["spec"]["selector"]["matchLabels"] == labels
        for variable in container_of(workload)["env"]:
            if "valueFrom" in variable:
                reference = variable["valueFrom"]["secretKeyRef"]
                assert reference["key"] in secrets[reference["name"]]
    labels = [workload["spec"]["template"]["metadata"]["labels"] for workload in workloads.values()]
    for each in documents:
        if each["kind"] == "PodDisruptionBudget":
            assert each["spec"]["selector"]["matchLabels"] in labels
        if each["kind"] == "Service":
            assert each["spec"]["selector"] in labels
        if each["kind"] == "ScaledObject":
            assert each["spec"]["scaleTargetRef"]["name"] in workloads
        if each["kind"] == "TriggerAuthentication":
            [reference] = each["spec"]["secretTargetRef"]
            assert reference["key"] in secrets[reference["name"]]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on PATH")
@pytest.mark.parametrize("name", ["shop-app.service", "shop-worker.service"])
def test_systemd_accepts_the_unit(name: str, tmp_path: Path) -> None:
    # Only a program that exists passes.
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", (DEPLOY / name).read_text(), flags=re.MULTILINE)
    (tmp_path / name).write_text(text)
    command = ["systemd-analyze", "verify", str(tmp_path / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if name in line]
    assert (done.returncode, complaints) == (0, [])
