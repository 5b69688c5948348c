"""The chart, rendered by Helm; its result is checked by Kubernetes' own schemas and by the fleet's loader.

And the compose file, by compose-go. There is no cluster: no pod runs here. A server that keeps what Helm
makes: `test_kubernetes_api.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from fleet.config.file import load
from fleet.config.settings import MemberSettings, Settings
from tools.bootstrap import COMPOSE_CHECK, HELM, KUBECTL_VALIDATE, ROOT

CHART: Final = ROOT / "deploy" / "helm" / "fleet"
PROMETHEUS: Final = ROOT / "deploy" / "prometheus"
RELEASE, NAMESPACE = "proxies", "kafka"
TOKENS: Final = ("read", "write")
"""Keys of the secret with the tokens, and names of the files that they are mounted as."""
REQUIRED_VALUES: Final = {"bootstrapServers": ["kafka-0.kafka:9092", "kafka-1.kafka:9092"]}
DIGEST: Final = "sha256:" + "0123456789abcdef" * 4
HOSTS: Final = "{member}.kafka.example"
HOSTNAME: Final = "external-dns.alpha.kubernetes.io/hostname"
CASES: Final[Mapping[str, Mapping[str, Any]]] = {
    "defaults": {},
    "load balancers": {
        "clients": {
            "type": "LoadBalancer",
            "host": HOSTS,
            "tlsSecret": "kafka-example-tls",
            "annotations": {
                "external-dns.alpha.kubernetes.io/ttl": "60",
                HOSTNAME: HOSTS,
            },
        },
        "racks": ["a", "b", "c"],
        "spread": "preferred",
        "zoneSpread": "required",
        "readinessGates": [{"conditionType": "example.com/among-the-targets"}],
        "clusterDomain": "example.internal",
    },
    "node ports": {
        "clients": {"type": "NodePort", "host": "nodes.kafka.example"},
        "identities": {"count": 4},
    },
    "names at one load balancer": {
        "clients": {
            "type": "LoadBalancer",
            "host": HOSTS,
            "tlsSecret": "kafka-example-tls",
            "sni": {"enabled": True, "oneLoadBalancer": True},
        }
    },
    "names at their own": {
        "clients": {
            "type": "LoadBalancer",
            "host": HOSTS,
            "tlsSecret": "kafka-example-tls",
            "sni": {"enabled": True},
        }
    },
    "by digest": {"image": {"repository": "registry.example:5000/team/fleet", "digest": DIGEST}},
    "five that are watched": {
        "replicas": 5,
        "voters": 5,
        "workers": "auto",
        "rackFromZone": True,
        "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
        "settings": {"upstream": {"tls": {"ca": "secrets/kafka/ca.pem"}}, "timing": {"steady_after_s": 3.0}},
        "secrets": [{"name": "kafka", "secret": "kafka-credentials"}],
        "networkPolicy": {
            "clientsFrom": [{"namespaceSelector": {}}],
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
        },
    },
}
OPERATOR_KINDS: Final = ("ServiceMonitor", "PrometheusRule")
"""Kinds of the Prometheus operator, whose schemas are not a part of Kubernetes."""


KUBERNETES: Final = ("--kube-version", "1.31.0")
"""A Helm that `go install` built assumes version 1.20 of the cluster."""


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *arguments, *KUBERNETES], capture_output=True, text=True, check=False)


@dataclass(frozen=True, slots=True)
class RenderedChart:
    """Helm's result for some values: manifests, and the configuration in them."""

    manifests: list[dict[str, Any]]
    settings: Settings

    def of(self, kind: str) -> dict[str, dict[str, Any]]:
        return {each["metadata"]["name"]: each for each in self.manifests if each["kind"] == kind}

    @property
    def domain(self) -> str:
        """The end of the names of services."""
        return self.settings.members[f"{RELEASE}-0"].peer.host.partition(".svc.")[2]

    @property
    def pod(self) -> dict[str, Any]:
        (stateful,) = self.of("StatefulSet").values()
        template: dict[str, Any] = stateful["spec"]["template"]
        return template


@pytest.fixture(scope="module", params=CASES, ids=lambda name: name.replace(" ", "-"))
def values(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("values") / "values.yaml"
    path.write_text(yaml.safe_dump({**REQUIRED_VALUES, **CASES[request.param]}))
    return path


@pytest.fixture(scope="module")
def chart(values: Path) -> RenderedChart:
    done = helm("template", RELEASE, CHART, "--namespace", NAMESPACE, "--values", values)
    assert done.returncode == 0, done.stderr
    manifests = [each for each in yaml.safe_load_all(done.stdout) if each]
    (configuration,) = (each for each in manifests if each["kind"] == "ConfigMap")
    path = values.with_name("fleet.yaml")
    path.write_text(configuration["data"]["fleet.yaml"])
    return RenderedChart(manifests, load(path, {}))


def test_helm_lint_has_no_findings(values: Path) -> None:
    done = helm("lint", "--strict", CHART, "--values", values)
    assert done.returncode == 0, done.stdout + done.stderr


def test_kubernetes_schema_accepts_every_manifest(chart: RenderedChart, tmp_path: Path) -> None:
    for number, each in enumerate(chart.manifests):
        if each["kind"] not in OPERATOR_KINDS:
            (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump(each))
    done = subprocess.run([KUBECTL_VALIDATE, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_kubernetes_schema_rejects_a_wrong_manifest(chart: RenderedChart, tmp_path: Path) -> None:
    (stateful,) = chart.of("StatefulSet").values()
    wrong = {**stateful, "spec": {**stateful["spec"], "replicas": "three"}}
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(wrong))
    done = subprocess.run([KUBECTL_VALIDATE, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "spec.replicas" in done.stdout + done.stderr


def test_each_pod_is_a_configured_member(chart: RenderedChart) -> None:
    (stateful,) = chart.of("StatefulSet").values()
    name, spec = stateful["metadata"]["name"], stateful["spec"]
    assert list(chart.settings.members) == [f"{name}-{number}" for number in range(spec["replicas"])]
    assert chart.of("Service")[spec["serviceName"]]["spec"]["clusterIP"] == "None"
    (container,) = chart.pod["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    for member in chart.settings.members.values():
        own = f"{member.proxy_id}.{spec['serviceName']}.{NAMESPACE}.svc.{chart.domain}"
        assert (member.peer.host, member.admin.host) == (own, own)
        assert (member.peer.port, member.admin.port) == (ports["peer"], ports["admin"])
        assert str(member.data_dir).startswith(mounts(container)["data"] + "/")
    assert spec["selector"]["matchLabels"].items() <= chart.pod["metadata"]["labels"].items()
    assert (
        chart.pod["spec"]["terminationGracePeriodSeconds"] > chart.settings.timing.drain_timeout_s
    )  # else Kubernetes kills the pod during its drain


def test_pods_use_the_image_of_the_values(chart: RenderedChart, values: Path) -> None:
    (container,) = chart.pod["spec"]["containers"]
    metadata = yaml.safe_load((CHART / "Chart.yaml").read_text())
    image = {"repository": "fleet", **yaml.safe_load(values.read_text()).get("image", {})}
    behind = f"@{image['digest']}" if "digest" in image else f":{metadata['appVersion']}"
    assert container["image"] == image["repository"] + behind


def mounts(container: Mapping[str, Any]) -> dict[str, str]:
    return {each["name"]: each["mountPath"] for each in container["volumeMounts"]}


def test_services_lead_to_what_members_advertise(chart: RenderedChart) -> None:
    services = chart.of("Service")
    (stateful,) = chart.of("StatefulSet")
    for member in chart.settings.members.values():
        (listener,) = member.listeners
        one_for_all = f"{member.proxy_id}-clients" not in services
        service = services[f"{stateful}-bootstrap" if one_for_all else f"{member.proxy_id}-clients"]["spec"]
        if not one_for_all:
            assert service["selector"]["statefulset.kubernetes.io/pod-name"] == member.proxy_id
        dialled = "nodePort" if service["type"] == "NodePort" else "port"
        leads = {each[dialled]: each["targetPort"] for each in service["ports"]}
        assert leads == advertised(chart.settings, member)
        if service["type"] == "ClusterIP":
            host = f"{member.proxy_id}-clients.{NAMESPACE}.svc.cluster.local"
            assert listener.advertised_host == host
        named = service_annotations(services, f"{member.proxy_id}-clients").get(HOSTNAME)
        # Found in a review: all services had the unexpanded template, so external-dns could name no pod.
        assert named in (None, listener.advertised_host)
    assert HOSTNAME not in service_annotations(services, f"{stateful}-bootstrap")


def service_annotations(services: Mapping[str, Any], name: str) -> Mapping[str, str]:
    found: Mapping[str, str] = services.get(name, {}).get("metadata", {}).get("annotations", {})
    return found


def advertised(settings: Settings, member: MemberSettings) -> dict[int, int]:
    """Each advertised port, and the port that the member listens on."""
    (listener,) = member.listeners
    found = {listener.advertised_bootstrap_port: listener.bootstrap_port}
    if listener.broker_host is None:
        for offset in range(settings.identities.count):
            found[listener.advertised_first_port + offset] = listener.first_port + offset
    return found


def test_pod_has_its_files_and_no_rights(chart: RenderedChart) -> None:
    (container,) = chart.pod["spec"]["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert chart.pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert chart.pod["spec"]["automountServiceAccountToken"] is False
    given = {each["name"] for each in container["env"]}
    assert {"FLEET_CONFIG", "FLEET_NODE"} <= given <= {"FLEET_CONFIG", "FLEET_NODE", "FLEET_RACK"}
    probes = {
        container[each]["httpGet"]["path"] for each in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert probes == {"/healthz", "/readyz"}
    folder = Path("/etc/fleet")
    expected = {folder / "certs"}
    expected |= {folder / "tls" for _ in chart.settings.listener_tls}
    assert {str(each) for each in expected} <= set(mounts(container).values())
    volumes = {each["name"] for each in chart.pod["spec"]["volumes"]} | {"data"}
    assert mounts(container).keys() <= volumes


def test_tokens_are_files_that_workers_cannot_inherit(chart: RenderedChart) -> None:
    (container,) = chart.pod["spec"]["containers"]
    assert not [each for each in container["env"] if "secretKeyRef" in each.get("valueFrom", {})]
    volumes = {each["name"]: each for each in chart.pod["spec"]["volumes"]}
    mounted = volumes["tokens"]["secret"]
    assert (
        mounted["defaultMode"] == 0o440
    )  # owner root, readable by the group of the pod: a member accepts the mode
    folder = Path(mounts(container)["tokens"])
    tokens = chart.settings.admin.tokens
    assert tokens is not None
    named = [tokens.read.file, tokens.write.file]
    base = chart.settings.source.rpartition("/")[0]
    assert named == [Path(base) / folder.name / each["path"] for each in mounted["items"]]
    assert [each["key"] for each in mounted["items"]] == list(TOKENS)
    assert folder == Path("/etc/fleet/tokens")  # where the configuration, /etc/fleet/fleet.yaml, looks


def test_racks_come_from_values_or_zones(chart: RenderedChart, values: Path) -> None:
    expected = yaml.safe_load(values.read_text())
    named = expected.get("racks", [None])
    from_zone = expected.get("rackFromZone", False)
    (container,) = chart.pod["spec"]["containers"]
    assert ("FLEET_RACK" in {each["name"] for each in container["env"]}) == from_zone
    for zone in ("europe-west1-b", "1", "no", ""):
        settings = load(chart.settings.source, {"FLEET_RACK": zone})
        for number, member in enumerate(settings.members.values()):
            assert member.rack == (zone or "unknown" if from_zone else named[number % len(named)])


def test_pods_are_spread_and_restart_one_at_a_time(chart: RenderedChart) -> None:
    (budget,) = chart.of("PodDisruptionBudget").values()
    assert budget["spec"]["maxUnavailable"] == 1
    labels = chart.pod["metadata"]["labels"].items()
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels
    (zones,) = chart.pod["spec"]["topologySpreadConstraints"]
    assert zones["topologyKey"] == "topology.kubernetes.io/zone"
    assert zones["whenUnsatisfiable"] in ("ScheduleAnyway", "DoNotSchedule")
    (affinity,) = chart.pod["spec"]["affinity"]["podAntiAffinity"].values()
    term = affinity[0].get("podAffinityTerm", affinity[0])
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"].items() <= labels
    (policy,) = chart.of("NetworkPolicy").values()
    opened = {
        port["port"]: port.get("endPort", port["port"])
        for rule in policy["spec"]["ingress"]
        for port in rule.get("ports", ())
    }
    for member in chart.settings.members.values():
        for port in (*advertised(chart.settings, member).values(), member.admin.port):
            assert any(first <= port <= last for first, last in opened.items()), port


def test_prometheus_finds_members_and_all_rules(chart: RenderedChart) -> None:
    rules = chart.of("PrometheusRule")
    assert bool(rules) == bool(chart.of("ServiceMonitor"))
    for each in rules.values():
        files = [yaml.safe_load((PROMETHEUS / name).read_text()) for name in ("rules.yml", "alerts.yml")]
        assert each["spec"]["groups"] == [group for file in files for group in file["groups"]]
    for each in chart.of("ServiceMonitor").values():
        (endpoint,) = each["spec"]["endpoints"]
        assert endpoint["scheme"] == "https"
        relabeled = {rule["targetLabel"]: rule["replacement"] for rule in endpoint["relabelings"]}
        for member in chart.settings.members.values():
            assert relabeled["__address__"].replace("$1", member.proxy_id) == str(member.admin)
        # Found in a review: with the operator's own job name no rule detected that a fleet was missing.
        expected = set(re.findall(r'up\{job=~"([^"]*)"\}', yaml.safe_dump(rules[RELEASE])))
        assert expected
        assert all(re.fullmatch(each, relabeled["job"]) for each in expected)


@pytest.mark.parametrize(
    ("wrong", "expected_error"),
    [
        ({"bootstrapServers": []}, "bootstrapServers: name at least one broker"),
        ({"voters": 5}, "voters: 5, and there are 3 members"),
        ({"rackFromZone": True, "racks": ["a"]}, "rackFromZone: racks already names the racks"),
        ({"clients": {"sni": {"enabled": True}}}, "set clients.tlsSecret"),
        ({"clients": {"type": "LoadBalancer"}}, "clients.host: with clients.type LoadBalancer"),
        ({"clients": {"type": "LoadBalancer", "host": "kafka.example"}}, "put {member} into it"),
        ({"clients": {"port": 99_999}}, "clients.port"),
        ({"secrets": [{"name": "kafka-", "secret": "kafka"}]}, "secrets.0.name"),  # a volume is named so
        ({"replica": 3}, "replica"),
        ({"image": {"digest": "latest"}}, "image.digest"),
        ({"image": {"digest": DIGEST, "tag": "0.3.0"}}, "image.tag: 0.3.0, but image.digest already names"),
    ],
)
def test_impossible_values_are_refused_and_named(
    wrong: dict[str, Any], expected_error: str, tmp_path: Path
) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump({**REQUIRED_VALUES, **wrong}))
    done = helm("template", RELEASE, CHART, "--values", path)
    assert done.returncode != 0
    assert expected_error in done.stderr.replace("/", "."), done.stderr


def test_compose_file_is_valid(tmp_path: Path) -> None:
    file = ROOT / "deploy" / "compose" / "compose.yaml"
    done = subprocess.run([COMPOSE_CHECK, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    members = ("p1", "p2", "p3")
    images = dict(line.split() for line in done.stdout.splitlines())
    assert images == {**dict.fromkeys(members, "fleet"), "prometheus": "prom/prometheus:v3.5.0"}
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(file.read_text().replace("cap_drop", "cap_dropped"))
    done = subprocess.run([COMPOSE_CHECK, wrong], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "cap_dropped" in done.stderr


def test_compose_takes_images_by_digest() -> None:
    names = ("FLEET_IMAGE", "PROMETHEUS_IMAGE", "KAFKA_IMAGE")
    images = {name: f"registry.example/{name.lower()}@{DIGEST}" for name in names}
    done = subprocess.run(
        [COMPOSE_CHECK, ROOT / "deploy" / "compose" / "compose.yaml"],
        env={**os.environ, **images, "COMPOSE_PROFILES": "kafka"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {line.split()[1] for line in done.stdout.splitlines()} == set(images.values())
