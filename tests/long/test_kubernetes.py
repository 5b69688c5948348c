"""The chart, read by Helm itself; what it makes, by Kubernetes' own schemas and by the fleet's loader.

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
THERE: Final = {"bootstrapServers": ["kafka-0.kafka:9092", "kafka-1.kafka:9092"]}
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
ELSEWHERE: Final = ("ServiceMonitor", "PrometheusRule")
"""Kinds of the Prometheus operator, whose schemas are not Kubernetes' own."""


KUBERNETES: Final = ("--kube-version", "1.31.0")
"""Helm takes the cluster for 1.20 where it is built by `go install`, and knows no better."""


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *arguments, *KUBERNETES], capture_output=True, text=True, check=False)


@dataclass(frozen=True, slots=True)
class Made:
    """What Helm makes of some values: manifests, and the configuration in them."""

    manifests: list[dict[str, Any]]
    settings: Settings

    def of(self, kind: str) -> dict[str, dict[str, Any]]:
        return {each["metadata"]["name"]: each for each in self.manifests if each["kind"] == kind}

    @property
    def domain(self) -> str:
        """What names of services end with."""
        return self.settings.members[f"{RELEASE}-0"].peer.host.partition(".svc.")[2]

    @property
    def pod(self) -> dict[str, Any]:
        (made,) = self.of("StatefulSet").values()
        template: dict[str, Any] = made["spec"]["template"]
        return template


@pytest.fixture(scope="module", params=CASES, ids=lambda name: name.replace(" ", "-"))
def values(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("values") / "values.yaml"
    path.write_text(yaml.safe_dump({**THERE, **CASES[request.param]}))
    return path


@pytest.fixture(scope="module")
def made(values: Path) -> Made:
    done = helm("template", RELEASE, CHART, "--namespace", NAMESPACE, "--values", values)
    assert done.returncode == 0, done.stderr
    manifests = [each for each in yaml.safe_load_all(done.stdout) if each]
    (configuration,) = (each for each in manifests if each["kind"] == "ConfigMap")
    path = values.with_name("fleet.yaml")
    path.write_text(configuration["data"]["fleet.yaml"])
    return Made(manifests, load(path, {}))


def test_helm_finds_nothing_to_say(values: Path) -> None:
    done = helm("lint", "--strict", CHART, "--values", values)
    assert done.returncode == 0, done.stdout + done.stderr


def test_kubernetes_takes_all_of_it(made: Made, tmp_path: Path) -> None:
    for number, each in enumerate(made.manifests):
        if each["kind"] not in ELSEWHERE:
            (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump(each))
    done = subprocess.run([KUBECTL_VALIDATE, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_kubernetes_would_have_said_no(made: Made, tmp_path: Path) -> None:
    (stateful,) = made.of("StatefulSet").values()
    wrong = {**stateful, "spec": {**stateful["spec"], "replicas": "three"}}
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(wrong))
    done = subprocess.run([KUBECTL_VALIDATE, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "spec.replicas" in done.stdout + done.stderr


def test_each_pod_is_a_member_that_the_configuration_knows(made: Made) -> None:
    (stateful,) = made.of("StatefulSet").values()
    name, spec = stateful["metadata"]["name"], stateful["spec"]
    assert list(made.settings.members) == [f"{name}-{number}" for number in range(spec["replicas"])]
    assert made.of("Service")[spec["serviceName"]]["spec"]["clusterIP"] == "None"
    (container,) = made.pod["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    for member in made.settings.members.values():
        own = f"{member.proxy_id}.{spec['serviceName']}.{NAMESPACE}.svc.{made.domain}"
        assert (member.peer.host, member.admin.host) == (own, own)
        assert (member.peer.port, member.admin.port) == (ports["peer"], ports["admin"])
        assert str(member.data_dir).startswith(mounts(container)["data"] + "/")
    assert spec["selector"]["matchLabels"].items() <= made.pod["metadata"]["labels"].items()
    assert (
        made.pod["spec"]["terminationGracePeriodSeconds"] > made.settings.timing.drain_timeout_s
    )  # else it is killed in the middle of it


def test_the_image_is_that_of_the_values(made: Made, values: Path) -> None:
    (container,) = made.pod["spec"]["containers"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    image = {"repository": "fleet", **yaml.safe_load(values.read_text()).get("image", {})}
    behind = f"@{image['digest']}" if "digest" in image else f":{chart['appVersion']}"
    assert container["image"] == image["repository"] + behind


def mounts(container: Mapping[str, Any]) -> dict[str, str]:
    return {each["name"]: each["mountPath"] for each in container["volumeMounts"]}


def test_services_lead_to_what_members_advertise(made: Made) -> None:
    services = made.of("Service")
    (stateful,) = made.of("StatefulSet")
    for member in made.settings.members.values():
        (listener,) = member.listeners
        one_for_all = f"{member.proxy_id}-clients" not in services
        service = services[f"{stateful}-bootstrap" if one_for_all else f"{member.proxy_id}-clients"]["spec"]
        if not one_for_all:
            assert service["selector"]["statefulset.kubernetes.io/pod-name"] == member.proxy_id
        dialled = "nodePort" if service["type"] == "NodePort" else "port"
        leads = {each[dialled]: each["targetPort"] for each in service["ports"]}
        assert leads == advertised(made.settings, member)
        if service["type"] == "ClusterIP":
            host = f"{member.proxy_id}-clients.{NAMESPACE}.svc.cluster.local"
            assert listener.advertised_host == host
        named = service_annotations(services, f"{member.proxy_id}-clients").get(HOSTNAME)
        # Found by reading: all services had it as it stands, so external-dns could name no pod.
        assert named in (None, listener.advertised_host)
    assert HOSTNAME not in service_annotations(services, f"{stateful}-bootstrap")


def service_annotations(services: Mapping[str, Any], name: str) -> Mapping[str, str]:
    found: Mapping[str, str] = services.get(name, {}).get("metadata", {}).get("annotations", {})
    return found


def advertised(settings: Settings, member: MemberSettings) -> dict[int, int]:
    """Each port that clients are told to dial, and the one that the member listens on."""
    (listener,) = member.listeners
    found = {listener.advertised_bootstrap_port: listener.bootstrap_port}
    if listener.broker_host is None:
        for offset in range(settings.identities.count):
            found[listener.advertised_first_port + offset] = listener.first_port + offset
    return found


def test_a_pod_has_no_rights_and_all_the_files_that_it_reads(made: Made) -> None:
    (container,) = made.pod["spec"]["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert made.pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert made.pod["spec"]["automountServiceAccountToken"] is False
    given = {each["name"] for each in container["env"]}
    assert {"FLEET_CONFIG", "FLEET_NODE"} <= given <= {"FLEET_CONFIG", "FLEET_NODE", "FLEET_RACK"}
    probes = {
        container[each]["httpGet"]["path"] for each in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert probes == {"/healthz", "/readyz"}
    folder = Path("/etc/fleet")
    wanted = {folder / "certs"}
    wanted |= {folder / "tls" for _ in made.settings.listener_tls}
    assert {str(each) for each in wanted} <= set(mounts(container).values())
    volumes = {each["name"] for each in made.pod["spec"]["volumes"]} | {"data"}
    assert mounts(container).keys() <= volumes


def test_tokens_are_files_that_workers_cannot_inherit(made: Made) -> None:
    (container,) = made.pod["spec"]["containers"]
    assert not [each for each in container["env"] if "secretKeyRef" in each.get("valueFrom", {})]
    volumes = {each["name"]: each for each in made.pod["spec"]["volumes"]}
    mounted = volumes["tokens"]["secret"]
    assert mounted["defaultMode"] == 0o440  # root's, readable by the group of the pod: a member accepts that
    folder = Path(mounts(container)["tokens"])
    tokens = made.settings.admin.tokens
    assert tokens is not None
    named = [tokens.read.file, tokens.write.file]
    base = made.settings.source.rpartition("/")[0]
    assert named == [Path(base) / folder.name / each["path"] for each in mounted["items"]]
    assert [each["key"] for each in mounted["items"]] == list(TOKENS)
    assert folder == Path("/etc/fleet/tokens")  # where the configuration, /etc/fleet/fleet.yaml, looks


def test_racks_are_those_that_are_named_or_zones_or_none(made: Made, values: Path) -> None:
    wanted = yaml.safe_load(values.read_text())
    named = wanted.get("racks", [None])
    from_zone = wanted.get("rackFromZone", False)
    (container,) = made.pod["spec"]["containers"]
    assert ("FLEET_RACK" in {each["name"] for each in container["env"]}) == from_zone
    for zone in ("europe-west1-b", "1", "no", ""):
        settings = load(made.settings.source, {"FLEET_RACK": zone})
        for number, member in enumerate(settings.members.values()):
            assert member.rack == (zone or "unknown" if from_zone else named[number % len(named)])


def test_pods_are_spread_and_restart_one_at_a_time(made: Made) -> None:
    (budget,) = made.of("PodDisruptionBudget").values()
    assert budget["spec"]["maxUnavailable"] == 1
    labels = made.pod["metadata"]["labels"].items()
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels
    (zones,) = made.pod["spec"]["topologySpreadConstraints"]
    assert zones["topologyKey"] == "topology.kubernetes.io/zone"
    assert zones["whenUnsatisfiable"] in ("ScheduleAnyway", "DoNotSchedule")
    (affinity,) = made.pod["spec"]["affinity"]["podAntiAffinity"].values()
    term = affinity[0].get("podAffinityTerm", affinity[0])
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"].items() <= labels
    (policy,) = made.of("NetworkPolicy").values()
    opened = {
        port["port"]: port.get("endPort", port["port"])
        for rule in policy["spec"]["ingress"]
        for port in rule.get("ports", ())
    }
    for member in made.settings.members.values():
        for port in (*advertised(made.settings, member).values(), member.admin.port):
            assert any(first <= port <= last for first, last in opened.items()), port


def test_prometheus_finds_members_and_all_rules(made: Made) -> None:
    rules = made.of("PrometheusRule")
    assert bool(rules) == bool(made.of("ServiceMonitor"))
    for each in rules.values():
        files = [yaml.safe_load((PROMETHEUS / name).read_text()) for name in ("rules.yml", "alerts.yml")]
        assert each["spec"]["groups"] == [group for file in files for group in file["groups"]]
    for each in made.of("ServiceMonitor").values():
        (endpoint,) = each["spec"]["endpoints"]
        assert endpoint["scheme"] == "https"
        relabeled = {rule["targetLabel"]: rule["replacement"] for rule in endpoint["relabelings"]}
        for member in made.settings.members.values():
            assert relabeled["__address__"].replace("$1", member.proxy_id) == str(member.admin)
        # Found by reading: by the operator's own name of the job no rule knew that a fleet was gone.
        wanted = set(re.findall(r'up\{job=~"([^"]*)"\}', yaml.safe_dump(rules[RELEASE])))
        assert wanted
        assert all(re.fullmatch(each, relabeled["job"]) for each in wanted)


@pytest.mark.parametrize(
    ("wrong", "said"),
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
def test_impossible_values_are_refused_and_named(wrong: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump({**THERE, **wrong}))
    done = helm("template", RELEASE, CHART, "--values", path)
    assert done.returncode != 0
    assert said in done.stderr.replace("/", "."), done.stderr


def test_the_compose_file_is_one(tmp_path: Path) -> None:
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
