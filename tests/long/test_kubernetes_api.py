"""The chart, installed into a real kube-apiserver, which checks and keeps all of it; still, no pod runs here.

What the values say, and what Helm makes of them: `test_kubernetes.py`.
"""

from __future__ import annotations

import copy
import itertools
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from fleet.config.file import load
from tests.chaos.harness import wait_for
from tests.long.kubernetes_api import Document, KubernetesApi, kubernetes_api
from tests.long.test_kubernetes import CASES, CHART, OPERATOR_KINDS, RELEASE, REQUIRED_VALUES, helm
from tools.bootstrap import KUBECTL_VALIDATE

OPERATOR: Final = "monitoring.coreos.com"
ZONE: Final = "topology.kubernetes.io/zone"
REGION: Final = "topology.kubernetes.io/region"
NUMBERS: Final = itertools.count(1)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesApi]:
    """One server for all, which knows the kinds of the Prometheus operator."""
    with kubernetes_api(tmp_path_factory.mktemp("api")) as running:
        for kind in OPERATOR_KINDS:
            running.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition(kind))
        wait_for(lambda: {*OPERATOR_KINDS} <= running.kinds().keys(), "kinds of the operator", 120)
        yield running


def definition(kind: str) -> Document:
    """A kind of the operator's, whatever is in it."""
    plural = f"{kind.lower()}s"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{OPERATOR}"},
        "spec": {
            "group": OPERATOR,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "scope": "Namespaced",
            "versions": [version],
        },
    }


@dataclass(frozen=True, slots=True)
class Place:
    """A namespace of a test's own, and the values that are installed there."""

    api: KubernetesApi
    namespace: str
    values: Path

    def helm(self, command: str, *arguments: str | Path, chart: Path = CHART) -> str:
        """What Helm prints; neither it nor the server has anything to say against it."""
        done = self.tried(command, *arguments, chart=chart)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    def tried(
        self, command: str, *arguments: str | Path, chart: Path = CHART
    ) -> subprocess.CompletedProcess[str]:
        what = () if command == "uninstall" else (chart, "--values", self.values)
        return self.api.helm(command, RELEASE, *what, "--namespace", self.namespace, *arguments)

    def stored(self) -> dict[tuple[str, str], Document]:
        """The objects of the release, without Helm's own records."""
        found = self.api.stored(self.namespace)
        return {key: each for key, each in found.items() if each.get("type") != "helm.sh/release.v1"}

    @property
    def stateful(self) -> Document:
        return self.stored()["StatefulSet", RELEASE]

    def pod(self, number: int = 0) -> Document:
        """Make the pod that the controller of StatefulSets would make of the stored set."""
        spec = copy.deepcopy(self.stateful["spec"])
        name, template = f"{RELEASE}-{number}", spec["template"]
        for claim in spec["volumeClaimTemplates"]:
            own = claim["metadata"]["name"]
            template["spec"]["volumes"].append(
                {"name": own, "persistentVolumeClaim": {"claimName": f"{own}-{name}"}}
            )
        metadata = {**template["metadata"], "name": name}
        metadata["labels"]["statefulset.kubernetes.io/pod-name"] = name
        return {**template, "apiVersion": "v1", "kind": "Pod", "metadata": metadata}

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"


@pytest.fixture
def place(api: KubernetesApi, tmp_path: Path) -> Iterator[Place]:
    """With no more than the smallest values; empty in the end, for node ports are everybody's."""
    created = Place(api, f"kafka-{next(NUMBERS)}", tmp_path / "values.yaml")
    created.values.write_text(yaml.safe_dump(REQUIRED_VALUES))
    api.make_namespace(created.namespace)
    yield created
    created.tried("uninstall", "--ignore-not-found")


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "-"))
def case(request: pytest.FixtureRequest, place: Place) -> Place:
    place.values.write_text(yaml.safe_dump({**REQUIRED_VALUES, **CASES[request.param]}))
    return place


def losses(sent: object, stored: object, path: str = "") -> Iterator[str]:
    """Yield the sent values that the server lost or changed. A server may add values."""
    if isinstance(sent, dict) and isinstance(stored, dict):
        for key, value in sent.items():
            yield from losses(value, stored.get(key), f"{path}.{key}")
    elif isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(stored):
        for number, (value, stored_value) in enumerate(zip(sent, stored, strict=True)):
            yield from losses(value, stored_value, f"{path}[{number}]")
    elif sent != stored:
        yield f"{path}: {sent!r} became {stored!r}"


def test_dry_run_creates_no_object(case: Place) -> None:
    expected_error = case.helm("install", "--dry-run=server")
    assert "kind: StatefulSet" in expected_error
    assert case.api.stored(case.namespace) == {}


def test_server_keeps_every_object_as_sent(case: Place) -> None:
    case.helm("install")
    manifests = case.api.helm("get", "manifest", RELEASE, "--namespace", case.namespace).stdout
    sent = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(manifests) if each}
    stored = case.stored()
    assert stored.keys() == sent.keys()
    expected = {
        "ConfigMap",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Service",
        "ServiceAccount",
        "StatefulSet",
    }
    assert expected <= {kind for kind, _ in stored}
    assert [each for key in sent for each in losses(sent[key], stored[key], str(key))] == []


def test_upgrade_restarts_only_pods_whose_settings_changed(case: Place) -> None:
    case.helm("install")
    before = case.stateful
    case.helm("upgrade")
    assert case.stateful["metadata"]["generation"] == before["metadata"]["generation"]
    case.helm("upgrade", "--set", "settings.limits.moves_per_second=7")
    after = case.stored()
    assert after["StatefulSet", RELEASE]["spec"]["template"] != before["spec"]["template"]
    assert "moves_per_second: 7" in after["ConfigMap", RELEASE]["data"]["fleet.yaml"]


def test_voters_do_not_change_while_pods_are_replaced_one_by_one(place: Place) -> None:
    """Found by reading: an upgrade restarted them so, and two sets of voters may have two leaders."""
    place.helm("install", "--set", "replicas=5,voters=5")
    done = place.tried("upgrade", "--set", "replicas=5,voters=3")
    assert done.returncode != 0
    assert "voters: 3, and this release runs with 5" in done.stderr
    place.helm("upgrade", "--set", "replicas=6,voters=5")
    place.helm("upgrade", "--set", "replicas=6,voters=3,votersChange=true")
    assert place.stateful["spec"]["replicas"] == 6


def test_an_uninstall_leaves_nothing(case: Place) -> None:
    case.helm("install")
    assert case.stored()
    case.helm("uninstall")
    assert case.api.stored(case.namespace) == {}


def test_restricted_namespace_admits_the_pods(case: Place) -> None:
    case.helm("install")
    answer = case.api.ask("POST", case.pods, case.pod())
    assert (answer.status, answer.warnings) == (201, ()), answer.document


@pytest.mark.parametrize(
    ("workload", "wrong", "expected_error"),
    [
        ("pod", {"runAsNonRoot": False}, "runAsNonRoot != true"),
        ("pod", {"seccompProfile": {"type": "Unconfined"}}, "seccompProfile"),
        ("container", {"allowPrivilegeEscalation": True}, "allowPrivilegeEscalation != false"),
        ("container", {"capabilities": {}}, "unrestricted capabilities"),
    ],
)
def test_restricted_namespace_rejects_privileged_pods(
    place: Place, workload: str, wrong: dict[str, Any], expected_error: str
) -> None:
    place.helm("install")
    pod = place.pod()
    holder = pod["spec"] if workload == "pod" else pod["spec"]["containers"][0]
    holder["securityContext"].update(wrong)
    answer = place.api.ask("POST", place.pods, pod)
    assert answer.status == 403
    assert 'violates PodSecurity "restricted' in answer.document["message"]
    assert expected_error in answer.document["message"]


def test_privileged_chart_gives_a_warning(place: Place, tmp_path: Path) -> None:
    changed = changed_chart(tmp_path, "statefulset.yaml", "runAsNonRoot: true", "runAsNonRoot: false")
    done = place.tried("install", chart=changed)
    assert done.returncode == 0, done.stderr
    assert "would violate PodSecurity" in done.stderr
    assert "runAsNonRoot != true" in done.stderr


def changed_chart(folder: Path, template: str, text: str, instead: str) -> Path:
    copied = shutil.copytree(CHART, folder / "chart")
    file = copied / "templates" / template
    assert text in file.read_text()
    file.write_text(file.read_text().replace(text, instead))
    return copied


@pytest.mark.parametrize(
    ("wrong", "expected_error"),
    [
        (
            {"clients": {"type": "NodePort", "host": "nodes.kafka.example", "firstNodePort": 20_000}},
            "provided port is not in the valid range",
        ),
        ({"nodeSelector": {"kafka": "not a value"}}, "spec.template.spec.nodeSelector: Invalid value"),
    ],
)
def test_server_side_faults_are_refused(
    place: Place, wrong: dict[str, Any], expected_error: str, tmp_path: Path
) -> None:
    place.values.write_text(yaml.safe_dump({**REQUIRED_VALUES, **wrong}))
    created = tmp_path / "made.yaml"
    created.write_text(helm("template", RELEASE, CHART, "--values", place.values).stdout)
    subprocess.run([KUBECTL_VALIDATE, created], check=True)
    done = place.tried("install")
    assert done.returncode != 0
    assert expected_error in done.stderr


def test_unknown_fields_are_found(place: Place, tmp_path: Path) -> None:
    changed = changed_chart(tmp_path, "statefulset.yaml", "minReadySeconds: 20", "minReadySecond: 20")
    done = place.tried("install", chart=changed)
    assert "minReadySecond" in done.stderr


@pytest.mark.parametrize("zone", ["europe-west1-b", "1"])
def test_a_pods_rack_is_the_zone_of_its_node(place: Place, zone: str) -> None:
    place.helm("install", "--set", "rackFromZone=true")
    assert rack_of_a_pod_at(place, node(place.api, {REGION: "europe", ZONE: zone})) == zone


def test_a_pod_whose_node_has_no_zone_is_in_no_brokers_rack(place: Place) -> None:
    place.helm("install", "--set", "rackFromZone=true")
    assert rack_of_a_pod_at(place, node(place.api, {REGION: "europe"})) == "unknown"


def node(api: KubernetesApi, labels: dict[str, str]) -> str:
    """A node that is known as one; it does not live."""
    name = f"node-{next(NUMBERS)}"
    metadata = {"name": name, "labels": labels}
    api.post("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    return name


def rack_of_a_pod_at(place: Place, node_name: str) -> str | None:
    """The rack of the first member after its pod is bound to a node, as the scheduler binds it."""
    pod = place.pod()
    # Admission knows of a node a moment after it is made, and has no labels of it for a pod until then.
    stored_value = {**pod, "spec": {**pod["spec"], "nodeName": node_name}}

    def is_known() -> bool:
        tried: Document = place.api.post(f"{place.pods}?dryRun=All", stored_value)
        return REGION in tried["metadata"]["labels"]

    wait_for(is_known, "the node", 60)
    created = place.api.post(place.pods, pod)
    assert ZONE not in created["metadata"]["labels"]
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": created["metadata"]["name"]},
        "target": {"kind": "Node", "name": node_name},
    }
    place.api.post(f"{place.pods}/{created['metadata']['name']}/binding", binding)
    bound = place.api.get(f"{place.pods}/{created['metadata']['name']}")
    assert bound["spec"]["nodeName"] == node_name
    (container,) = bound["spec"]["containers"]
    (rack,) = (each for each in container["env"] if each["name"] == "FLEET_RACK")
    assert rack["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.labels['{ZONE}']"
    # The kubelet, too, takes a label that is not there for an empty one.
    environment = {"FLEET_RACK": bound["metadata"]["labels"].get(ZONE, "")}
    file = place.values.with_name("fleet.yaml")
    file.write_text(place.stored()["ConfigMap", RELEASE]["data"]["fleet.yaml"])
    return load(file, environment).member(created["metadata"]["name"]).rack
