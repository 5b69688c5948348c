"""A real kube-apiserver with its etcd, on loopback: it checks, admits and stores what it receives.

Nothing else of a cluster exists: no node runs and no controller acts, so no pod is created or runs.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from fleet.drills.cluster.ports import free_ports
from fleet.drills.cluster.spawn import end, spawn, tail
from tests.certificates import Authority
from tests.chaos.harness import becomes
from tools.bootstrap import ETCD, HELM, KUBE_APISERVER

HOST: Final = "127.0.0.1"
READY_LIMIT_S: Final = 240.0
"""The server needs a second or two of two free processors; a machine may have none."""
ANSWER_LIMIT_S: Final = 60.0
DISCOVERY: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
"""The media type of all kinds at once, as Helm requests them."""

JSON: Final = "application/json"

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """The server's answer to one request.

    Args:
        warnings: the warnings in its headers; admission warns of objects that it admits nevertheless.
    """

    status: int
    document: Document
    warnings: tuple[str, ...]


class KubernetesApi:
    """A running server, as its administrator sees it.

    Args:
        url: its address.
        certificate: the certificate of its authority.
        token: the token of the requests.
        folder: the folder of Helm's own files.
    """

    def __init__(self, url: str, certificate: Path, token: str, folder: Path) -> None:
        self._url = url
        self._tls = ssl.create_default_context(cafile=str(certificate))
        self._token = token
        self._folder = folder
        self._kubeconfig = folder / "kubeconfig"
        self._kubeconfig.write_text(yaml.safe_dump(_kubeconfig(url, certificate, token)))

    def ask(self, method: str, path: str, document: Document | None = None, accept: str = JSON) -> Answer:
        """Send one request, whatever the answer is."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": JSON, "Accept": accept}
        body = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(f"{self._url}{path}", body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_LIMIT_S, context=self._tls) as answer:
                warnings = tuple(answer.headers.get_all("Warning", ()))
                return Answer(answer.status, json.load(answer), warnings)
        except urllib.error.HTTPError as refused:
            with refused:
                return Answer(refused.code, json.load(refused), ())

    def get(self, path: str, accept: str = JSON) -> Document:
        return _well(self.ask("GET", path, accept=accept))

    def post(self, path: str, document: Document) -> Document:
        return _well(self.ask("POST", path, document))

    def is_ready(self) -> bool:
        request = urllib.request.Request(f"{self._url}/readyz")
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_LIMIT_S, context=self._tls):
                return True
        except OSError:
            return False

    def make_namespace(self, name: str) -> None:
        """Create a namespace that admits only restricted pods, and warns of workloads that would make
        others."""
        modes = ("enforce", "warn")
        labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in modes}
        made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        self.post("/api/v1/namespaces", made)

    def stored(self, namespace: str) -> dict[tuple[str, str], Document]:
        """Everything in a namespace, of any kind, by kind and name."""
        found = {}
        for kind, path in self.kinds().items():
            group, _, plural = path.rpartition("/")
            listed = self.get(f"{group}/namespaces/{namespace}/{plural}")
            for each in listed["items"]:
                # A list has the kind of its items only once.
                whole = {"apiVersion": listed["apiVersion"], "kind": kind, **each}
                found[kind, each["metadata"]["name"]] = whole
        return found

    def kinds(self) -> dict[str, str]:
        """The namespaced kinds, each with the path to its list."""
        found = {}
        for root in ("/api", "/apis"):
            for group in self.get(root, DISCOVERY)["items"]:
                newest = group["versions"][0]
                parts = (root, group["metadata"].get("name"), newest["version"])
                path = "/".join(filter(None, parts))
                for each in newest["resources"]:
                    if each["scope"] == "Namespaced" and "list" in each["verbs"]:
                        found[each["responseKind"]["kind"]] = f"{path}/{each['resource']}"
        return found

    def helm(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run Helm, which uses this server and keeps its files in the folder."""
        environment = {**os.environ, "HOME": str(self._folder), "KUBECONFIG": str(self._kubeconfig)}
        command: Sequence[str | Path] = (HELM, *arguments)
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def _well(answer: Answer) -> Document:
    assert answer.status < 300, answer.document
    return answer.document


def _kubeconfig(url: str, certificate: Path, token: str) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "it", "cluster": {"server": url, "certificate-authority": str(certificate)}}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "admin"}}],
        "current-context": "it",
    }


@contextmanager
def kubernetes_api(folder: Path) -> Iterator[KubernetesApi]:
    """Run a ready and empty server. Only its logs stay."""
    etcd_port, peer_port, port = free_ports(3)
    state = folder / "state"
    authority = Authority(state / "certificates")
    token = secrets.token_hex(16)
    commands = (
        _etcd(state, etcd_port, peer_port),
        _server(state, authority, token, port, etcd_port),
    )
    logs = [folder / f"{Path(command[0]).name}.log" for command in commands]
    processes = [spawn(command, log) for command, log in zip(commands, logs, strict=True)]
    try:
        running = KubernetesApi(f"https://{HOST}:{port}", authority.certificate, token, state)

        def is_ready_or_over() -> bool:
            return running.is_ready() or any(each.poll() is not None for each in processes)

        ready = becomes(is_ready_or_over, READY_LIMIT_S, every_s=0.1) and running.is_ready()
        assert ready, "\n".join(map(tail, logs))
        yield running
    finally:
        end(processes, patience_s=0.0)  # their data is not needed any longer
        shutil.rmtree(state)


def _etcd(state: Path, port: int, peer_port: int) -> list[str]:
    here, to_peers = f"http://{HOST}:{port}", f"http://{HOST}:{peer_port}"
    return [
        str(ETCD),
        "--name=it",
        f"--data-dir={state / 'etcd'}",
        f"--listen-client-urls={here}",
        f"--advertise-client-urls={here}",
        f"--listen-peer-urls={to_peers}",
        f"--initial-advertise-peer-urls={to_peers}",
        f"--initial-cluster=it={to_peers}",
    ]


def _server(state: Path, authority: Authority, token: str, port: int, etcd_port: int) -> list[str]:
    own, accounts = authority.issue("apiserver", (HOST,)), authority.issue("accounts")
    tokens = state / "tokens.csv"
    tokens.touch(0o600)
    tokens.write_text(f"{token},admin,admin,system:masters\n")
    return [
        str(KUBE_APISERVER),
        f"--etcd-servers=http://{HOST}:{etcd_port}",
        f"--bind-address={HOST}",
        f"--advertise-address={HOST}",
        "--endpoint-reconciler-type=none",  # it would require an address that others reach
        f"--secure-port={port}",
        f"--tls-cert-file={own.certificate}",
        f"--tls-private-key-file={own.key}",
        f"--token-auth-file={tokens}",
        "--authorization-mode=RBAC",
        f"--service-account-issuer=https://{HOST}:{port}",
        f"--service-account-signing-key-file={accounts.key}",
        f"--service-account-key-file={accounts.certificate}",
        "--service-cluster-ip-range=10.96.0.0/16",
    ]
