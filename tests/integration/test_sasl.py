"""SASL between client and broker, through the fleet: every mechanism, denying ACLs, re-authentication.

What is denied directly is denied through the fleet, nothing more and nothing less.
"""

from __future__ import annotations

import asyncio
import re
import struct
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from fleet.core.model import Endpoint, IdentitySpace
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster, java
from fleet.drills.cluster.kafka_jars import CHECKOUT_LIBS
from fleet.drills.cluster.spawn import end, spawn
from tests.certificates import Authority
from tests.clients.franz.program import by_franz_go
from tests.integration import wire
from tests.integration.clients import LIMIT_S, produce, wait_for
from tests.integration.conftest import PATIENT
from tests.integration.rights import (
    CLOSED,
    EXPECTED,
    OPEN,
    OWN,
    PUBLIC,
    Credentials,
    Outcomes,
    by_aiokafka,
    by_librdkafka,
)
from tests.integration.tokens import AUDIENCE, ISSUER, Issuer

pytestmark = pytest.mark.size("test-all")

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
USERS: Final = ("app", "guest", "fleet")
SESSION_S: Final = 8.0
"""The session lifetime after which a client must authenticate again, on one of the listeners."""
RENEWED: Final = "renewed"
TOKENS: Final = "org.apache.kafka.tools.DelegationTokenCommand"
TOPICS: Final = "org.apache.kafka.tools.TopicCommand"
FLEETS_OWN: Final = {"mechanism": "PLAIN", "username": "fleet", "password": {"file": "secret"}}
LOGIN: Final = "org.apache.kafka.common.security"
LOCAL_MECHANISM: Final = Path(__file__).parent


def password(user: str) -> str:
    return f"of-{user}"


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture(scope="module")
def cluster(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Two brokers with all mechanisms on `sasl`, and on `again`, where sessions are short."""
    folder = tmp_path_factory.mktemp("sasl")
    issuer.write_keys(folder / "keys.json")
    keys = (folder / "keys.json").as_uri()
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "delegation.token.secret.key": "of the brokers",
        "sasl.oauthbearer.jwks.endpoint.url": keys,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "listener.name.again.connections.max.reauth.ms": f"{SESSION_S * 1000:.0f}",
    }
    users = " ".join(f'user_{user}="{password(user)}"' for user in USERS)
    for listener in ("sasl", "again"):
        of = f"listener.name.{listener}"
        properties |= {
            f"{of}.plain.sasl.jaas.config": f"{LOGIN}.plain.PlainLoginModule required {users};",
            f"{of}.scram-sha-256.sasl.jaas.config": f"{LOGIN}.scram.ScramLoginModule required;",
            f"{of}.scram-sha-512.sasl.jaas.config": f"{LOGIN}.scram.ScramLoginModule required;",
            f"{of}.oauthbearer.sasl.jaas.config": f"{LOGIN}.oauthbearer.OAuthBearerLoginModule required;",
            f"{of}.oauthbearer.sasl.server.callback.handler.class": (
                f"{LOGIN}.oauthbearer.OAuthBearerValidatorCallbackHandler"
            ),
        }
    with KafkaCluster(
        2,
        folder,
        secured={"sasl": "SASL_PLAINTEXT", "again": "SASL_PLAINTEXT"},
        properties=properties,
        scram={user: password(user) for user in USERS},
        jvm=(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}",),
    ) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        for made in admin.create_topics([NewTopic(each, 2, 2) for each in (OPEN, CLOSED, RENEWED)]).values():
            made.result(LIMIT_S)
        produce(running.bootstrap_servers, OPEN, [b"%d" % number for number in range(20)])
        of_app = [(ResourceType.TOPIC, name) for name in (OPEN, RENEWED, OWN)]
        of_app += [(ResourceType.GROUP, OWN), (ResourceType.TRANSACTIONAL_ID, OWN)]
        rights = [binding("app", kind, name, AclOperation.ALL) for kind, name in of_app]
        rights.append(binding("guest", ResourceType.TOPIC, OPEN, AclOperation.READ))
        rights += [binding(user, ResourceType.GROUP, PUBLIC, AclOperation.READ) for user in EXPECTED]
        for given in admin.create_acls(rights).values():
            given.result(LIMIT_S)
        yield running


def binding(user: str, kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    pattern = ResourcePatternType.PREFIXED if name in (OWN, PUBLIC) else ResourcePatternType.LITERAL
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


def credentials(issuer: Issuer, mechanism: str, user: str) -> Credentials:
    secret = issuer.issue(user) if mechanism == "OAUTHBEARER" else password(user)
    return Credentials(mechanism, user, secret)


def listeners(cluster: KafkaCluster, name: str) -> list[Endpoint]:
    return [cluster.listener(name, broker_id) for broker_id in cluster.brokers]


@dataclass(frozen=True)
class Bootstraps:
    """Two routes to the same listener of the brokers."""

    direct: list[Endpoint]
    fleet: LocalFleet

    @property
    def bootstraps(self) -> dict[str, str]:
        return {"direct": ",".join(map(str, self.direct)), "fleet": self.fleet.bootstrap()}

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """A route to one broker each."""
        return {"direct": self.direct[0], "fleet": self.fleet.bootstrap_endpoint("p1")}


@contextmanager
def bootstraps_of_fleet(
    cluster: KafkaCluster, folder: Path, listener: str, sasl: Mapping[str, object], **options: Any
) -> Iterator[Bootstraps]:
    direct = listeners(cluster, listener)
    space = IdentitySpace(first_id=1, count=4)
    secret = folder / "secret"
    secret.touch(0o600)
    secret.write_text(password("fleet"))
    upstream = {"sasl": sasl}
    with LocalFleet(
        folder, direct, 2, identities=space, timing=PATIENT, upstream=upstream, **options
    ) as fleet:
        fleet.await_settled(frozenset(cluster.brokers))
        yield Bootstraps(direct, fleet)
    fleet.remove_data()


@pytest.fixture(scope="module")
def both(cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bootstraps]:
    """A fleet in front of `sasl`. Its own principal authenticates by PLAIN."""
    with bootstraps_of_fleet(cluster, tmp_path_factory.mktemp("fleet"), "sasl", FLEETS_OWN) as made:
        yield made


@pytest.fixture(scope="module")
def second_fleet(cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bootstraps]:
    """A fleet in front of `again`."""
    sasl = {"mechanism": "SCRAM-SHA-256", "username": "fleet", "password": {"file": "secret"}}
    with bootstraps_of_fleet(cluster, tmp_path_factory.mktemp("again"), "again", sasl) as made:
        yield made


# ----------------------------------------------------------------------------------------------------- rights


CASES: Final = [(mechanism, user) for mechanism in MECHANISMS for user in EXPECTED]


def check_rights(found: Mapping[tuple[str, str, str], Outcomes]) -> None:
    """Each outcome, by mechanism, user and route, must be the expected one, and so the same on both
    routes."""
    assert found.keys() == {(*case, way) for case in CASES for way in ("direct", "fleet")}
    wrong = {case: outcomes for case, outcomes in found.items() if outcomes != EXPECTED[case[1]]}
    assert wrong == {}


def check_rights_of_each(
    by: Callable[[str, str, Credentials], Outcomes], client: str, both: Bootstraps, issuer: Issuer
) -> None:
    """Let a client try everything in each case, on both routes."""

    def attempt(case: tuple[str, str, str]) -> Outcomes:
        mechanism, user, way = case
        return by("-".join((client, *case)), both.bootstraps[way], credentials(issuer, mechanism, user))

    cases = [(*case, way) for case in CASES for way in both.bootstraps]
    with ThreadPoolExecutor(8) as pool:
        check_rights(dict(zip(cases, pool.map(attempt, cases), strict=True)))


@pytest.mark.proves("librdkafka", "SASL PLAIN", "SASL SCRAM", "SASL OAUTHBEARER", "ACLs")
def test_librdkafka_is_denied_what_it_is_denied_directly(both: Bootstraps, issuer: Issuer) -> None:
    check_rights_of_each(by_librdkafka, "rd", both, issuer)


@pytest.mark.proves("franz-go", "SASL PLAIN", "SASL SCRAM", "SASL OAUTHBEARER", "ACLs")
def test_franz_go_is_denied_what_it_is_denied_directly(both: Bootstraps, issuer: Issuer) -> None:
    check_rights_of_each(by_franz_go, "go", both, issuer)


@pytest.mark.proves("librdkafka", "TLS", "SASL PLAIN", "SASL SCRAM", "SASL OAUTHBEARER", "ACLs")
def test_over_tls_to_the_fleet_the_same_is_denied(
    cluster: KafkaCluster, issuer: Issuer, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("listener", ["127.0.0.1"])
    tls = {"certificate": str(pair.certificate), "key": str(pair.key)}
    (folder := tmp_path / "fleet").mkdir()

    with bootstraps_of_fleet(cluster, folder, "sasl", FLEETS_OWN, listener_tls=tls) as sealed:

        def attempt(case: tuple[str, str]) -> Outcomes:
            mechanism, user = case
            given = replace(credentials(issuer, mechanism, user), trusted=authority.certificate)
            return by_librdkafka(f"tls-{mechanism}-{user}", sealed.fleet.bootstrap(), given)

        with ThreadPoolExecutor(8) as pool:
            outcomes = dict(zip(CASES, pool.map(attempt, CASES), strict=True))
    assert outcomes == {(mechanism, user): EXPECTED[user] for mechanism, user in CASES}


@pytest.mark.size("test")
@pytest.mark.proves("aiokafka", "SASL PLAIN", "SASL SCRAM", "SASL OAUTHBEARER", "ACLs")
async def test_aiokafka_is_denied_what_it_is_denied_directly(both: Bootstraps, issuer: Issuer) -> None:
    async def attempt(case: tuple[str, str, str]) -> Outcomes:
        mechanism, user, way = case
        name = f"aio-{'-'.join(case)}"
        return await by_aiokafka(name, both.bootstraps[way], credentials(issuer, mechanism, user))

    cases = [(*case, way) for case in CASES for way in both.bootstraps]
    check_rights(dict(zip(cases, await asyncio.gather(*map(attempt, cases)), strict=True)))


def settings_for_java(
    folder: Path, name: str, bootstrap: str, given: Credentials, *, delegated: bool = False
) -> Path:
    """A file for Java's clients. A token of OAUTHBEARER is in its own file next to it.

    Args: delegated: whether the credentials are those of a delegation token.
    """
    settings = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": given.mechanism,
    }
    user = f'username="{given.username}" password="{given.secret}"'
    if given.mechanism == "PLAIN":
        login = f"plain.PlainLoginModule required {user}"
    elif given.mechanism == "OAUTHBEARER":
        login = "oauthbearer.OAuthBearerLoginModule required"
        (folder / f"{given.username}.token").write_text(given.secret)
        settings["sasl.login.callback.handler.class"] = f"{LOGIN}.oauthbearer.OAuthBearerLoginCallbackHandler"
        settings["sasl.oauthbearer.token.endpoint.url"] = (folder / f"{given.username}.token").as_uri()
    else:
        login = f"scram.ScramLoginModule required {user}{' tokenauth=true' if delegated else ''}"
    settings["sasl.jaas.config"] = f"{LOGIN}.{login};"
    file = folder / f"{name}.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return file


def java_program(folder: Path, program: str, *arguments: str) -> list[str]:
    """The command line of a program of this folder, which may read the tokens of the other folder."""
    tokens = ",".join(each.as_uri() for each in folder.glob("*.token"))
    logging = folder / "log4j2.properties"
    logging.write_text("status=ERROR\nrootLogger.level=OFF\n")
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens}"
    return java(CHECKOUT_LIBS, logging, "-Xmx256m", allowed, str(LOCAL_MECHANISM / program), *arguments)


@pytest.mark.proves("Java", "SASL PLAIN", "SASL SCRAM", "SASL OAUTHBEARER", "ACLs")
def test_java_is_denied_what_it_is_denied_directly(both: Bootstraps, issuer: Issuer, tmp_path: Path) -> None:
    cases = {
        f"{mechanism}_{user}_{way}": (mechanism, user, way)
        for mechanism, user in CASES
        for way in both.bootstraps
    }
    files = [
        settings_for_java(tmp_path, name, both.bootstraps[way], credentials(issuer, mechanism, user))
        for name, (mechanism, user, way) in cases.items()
    ]
    check_rights({cases[name]: outcomes for name, outcomes in rights_of(tmp_path, files).items()})


def rights_of(folder: Path, files: Iterable[Path]) -> dict[str, Outcomes]:
    """The rights of Java's clients with each file of settings, by its name."""
    command = java_program(folder, "Rights.java", *map(str, files))
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, str]] = {}
    for line in done.stdout.splitlines():
        name, what, outcome = line.split("\t")
        found.setdefault(name, {})[what] = outcome
    return dict(found)


@pytest.mark.proves("Java", "delegation token")
def test_a_delegation_token_is_made_and_used_through_the_fleet(
    both: Bootstraps, cluster: KafkaCluster, issuer: Issuer, tmp_path: Path
) -> None:
    """A delegation token has the rights of its creator; the fleet is not involved."""
    maker = settings_for_java(
        tmp_path, "maker", both.bootstraps["fleet"], credentials(issuer, "SCRAM-SHA-256", "app")
    )
    through = ("--bootstrap-server", both.bootstraps["fleet"])
    made = cluster.tool(
        TOKENS, *through, "--command-config", str(maker), "--create", "--max-life-time-period", "-1"
    )
    found = re.search(r"^(\S{22})\s+(\S+=)\s+User:app\s", made.stdout, re.MULTILINE)
    assert found is not None, (made.stdout, made.stderr)
    token = Credentials("SCRAM-SHA-256", found[1], found[2])
    files = {
        way: settings_for_java(tmp_path, f"token_{way}", bootstrap, token, delegated=True)
        for way, bootstrap in both.bootstraps.items()
    }

    def known() -> bool:
        config = ("--command-config", str(files["fleet"]))
        return cluster.tool(TOPICS, *through, *config, "--list").returncode == 0

    wait_for(known, "brokers know the token")
    outcomes = rights_of(tmp_path, files.values())
    assert outcomes == dict.fromkeys(("token_direct", "token_fleet"), EXPECTED["app"])


@pytest.mark.size("test")
def test_client_refused_directly_is_refused_through_the_fleet(both: Bootstraps, issuer: Issuer) -> None:
    refused = {
        "a wrong password": Credentials("PLAIN", "app", "wrong"),
        "an unknown user": Credentials("PLAIN", "nobody", password("app")),
        "a wrong password in SCRAM-SHA-256": Credentials("SCRAM-SHA-256", "app", "wrong"),
        "a wrong password in SCRAM-SHA-512": Credentials("SCRAM-SHA-512", "app", "wrong"),
        "a token of somebody else's": Credentials("OAUTHBEARER", "app", Issuer().issue("app")),
        "a token of yesterday's": Credentials("OAUTHBEARER", "app", issuer.issue("app", -86_400)),
        "a token for another audience": Credentials("OAUTHBEARER", "app", issuer.issue("app", audience="x")),
    }

    def attempt(case: tuple[str, str]) -> tuple[int, str]:
        why, way = case
        outcomes_by_user: list[KafkaError] = []
        config = {**refused[why].librdkafka, "error_cb": outcomes_by_user.append}
        producer = Producer({"bootstrap.servers": both.bootstraps[way], **config})

        def refusal() -> list[KafkaError]:
            producer.poll(0)
            return [each for each in outcomes_by_user if each.code() == KafkaError._AUTHENTICATION]

        wait_for(refusal, f"{why} is refused ({way}); errors: {outcomes_by_user}")
        # As in "sasl_plaintext://127.0.0.1:20100/bootstrap: why (after 12ms in state AUTH_REQ)".
        text = re.sub(r"^.*?/\w+: | \(after .*\)$|, \d+ identical error.*$", "", refusal()[0].str())
        return refusal()[0].code(), text

    cases = [(why, way) for why in refused for way in both.bootstraps]
    with ThreadPoolExecutor(len(cases)) as pool:
        outcomes = dict(zip(cases, pool.map(attempt, cases), strict=True))
    assert all("uthentication failed" in text or "invalid_token" in text for _, text in outcomes.values()), (
        outcomes
    )
    for why in refused:
        assert outcomes[why, "direct"] == outcomes[why, "fleet"]


def test_fleets_own_principal_may_use_a_renewed_token(
    cluster: KafkaCluster, issuer: Issuer, tmp_path: Path
) -> None:
    """The password is read from its file for each connection; a refusal by brokers is reported."""
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(Issuer().issue("fleet"))
    upstream = {"sasl": {"mechanism": "OAUTHBEARER", "token": {"file": str(token)}}}
    space = IdentitySpace(first_id=1, count=4)
    fleet = LocalFleet(
        tmp_path / "fleet", listeners(cluster, "sasl"), 1, identities=space, timing=PATIENT, upstream=upstream
    )
    with ExitStack() as ending:
        ending.callback(fleet.remove_data)
        ending.callback(fleet.close)
        fleet.start()
        wait_for(lambda: "refused the token" in fleet.log("p1").read_text(), "a line in the log")
        token.write_text(f"{issuer.issue('fleet')}\n")
        fleet.await_settled(frozenset(cluster.brokers))
        assert token.read_text().strip() not in fleet.log("p1").read_text()


# -------------------------------------------------------------------------------------- authenticating again


SASL_AUTHENTICATE: Final = 36
AUTHENTICATION_FAILED: Final = 58


def handshake(correlation_id: int, mechanism: str) -> bytes:
    """SaslHandshake v1. Source: SaslHandshakeRequest.json"""
    return wire.request(wire.SASL_HANDSHAKE, 1, correlation_id, wire.string(mechanism))


def plain(correlation_id: int, user: str) -> bytes:
    """SaslAuthenticate v1 with PLAIN. Source: SaslAuthenticateRequest.json, RFC 4616"""
    token = f"\0{user}\0{password(user)}".encode()
    return wire.request(SASL_AUTHENTICATE, 1, correlation_id, struct.pack(">i", len(token)) + token)


@dataclass(frozen=True, slots=True)
class Authenticated:
    """Source: SaslAuthenticateResponse.json v1"""

    error_code: int
    message: str
    lifetime_ms: int

    @staticmethod
    def parse(body: bytes) -> Authenticated:
        error_code, size = struct.unpack_from(">hh", body)
        at = 4 + max(0, size)
        (token,) = struct.unpack_from(">i", body, at)
        (lifetime_ms,) = struct.unpack_from(">q", body, at + 4 + max(0, token))
        return Authenticated(error_code, body[4:at].decode(), lifetime_ms)


class Session:
    """A raw connection that has authenticated by PLAIN."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.connection = wire.Connection(endpoint)
        self._next = 0
        self.answers = self.ask(handshake, "PLAIN")
        self.first = Authenticated.parse(self.ask(plain, "app"))

    def _frame(self, make: Any, *arguments: str) -> bytes:
        self._next += 1
        frame: bytes = make(self._next, *arguments)
        return frame

    def ask(self, make: Any, *arguments: str) -> bytes:
        return self.connection.ask(self._frame(make, *arguments))

    def second_fleet(self, user: str = "app") -> Authenticated:
        """Authenticate again, with requests before, and if it may succeed also after, in one write.

        A broker answers one of two requests, and not always the same one, where the first is refused.
        """
        requests: list[tuple[Any, *tuple[str, ...]]] = [
            (wire.metadata,),
            (wire.metadata,),
            (handshake, "PLAIN"),
            (plain, user),
        ]
        if user == "app":
            requests += [(wire.metadata,)]
        frames = [self._frame(*each) for each in requests]
        self.connection.send(b"".join(frames))
        bodies = []
        for frame in frames:
            correlation_id, body = self.connection.receive()
            assert correlation_id == struct.unpack_from(">i", frame, 8)[0]
            bodies.append(body)
        assert bodies[2][:2] == b"\0\0", "the mechanism is taken"
        assert all(wire.brokers_of(body) for body in (*bodies[:2], *bodies[4:]))
        return Authenticated.parse(bodies[3])


@pytest.fixture(scope="module")
def renewing(
    second_fleet: Bootstraps, issuer: Issuer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """Java's producers and consumers, a pair for each mechanism and route, until each has authenticated 5
    times."""
    folder = tmp_path_factory.mktemp("renewing")
    files = [
        settings_for_java(
            folder, f"{mechanism}_{way}", second_fleet.bootstraps[way], credentials(issuer, mechanism, "app")
        )
        for mechanism, way in product(MECHANISMS, second_fleet.bootstraps)
    ]
    command = java_program(folder, "Renewing.java", RENEWED, "5", *map(str, files))
    process = spawn(command, folder / "log", piped=True)
    yield process, folder / "log"
    end([process], 0.0)


def test_reauthenticating_connection_stays_the_other_is_closed(
    second_fleet: Bootstraps, renewing: Any
) -> None:
    """The result equals the broker's own. `renewing` serves the next test, and runs meanwhile."""
    ended: dict[str, float] = {}
    changed: dict[str, Authenticated] = {}

    def live(way: str, endpoint: Endpoint) -> None:
        renewed, expiring, changing = (Session(endpoint) for _ in range(3))
        started_s = renewed_s = time.monotonic()
        for each in (renewed, expiring, changing):
            assert each.first == Authenticated(0, "", int(SESSION_S * 1000))
        changed[way] = changing.second_fleet("guest")
        assert changing.connection.ends()
        while (now_s := time.monotonic()) < started_s + 1.4 * SESSION_S:
            if now_s > renewed_s + SESSION_S / 3:
                assert renewed.second_fleet() == renewed.first
                renewed_s = now_s
            assert wire.brokers_of(renewed.ask(wire.metadata))
            if way not in ended:
                try:
                    assert wire.brokers_of(expiring.ask(wire.metadata))
                except (EOFError, ConnectionResetError):
                    ended[way] = now_s - started_s
            time.sleep(0.02)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(live, *each) for each in second_fleet.endpoints.items()]:
            done.result()
    assert changed["direct"] == changed["fleet"]
    assert changed["fleet"].error_code == AUTHENTICATION_FAILED
    assert "Cannot change principals during re-authentication" in changed["fleet"].message
    assert ended.keys() == {"direct", "fleet"}
    assert min(ended.values()) > SESSION_S / 2


@pytest.mark.proves("Java", "re-authentication")
def test_clients_reauthenticate_repeatedly_on_one_connection(second_fleet: Bootstraps, renewing: Any) -> None:
    process, log = renewing
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, log.read_text()
    outcomes_by_user: dict[tuple[str, str], dict[str, int]] = {}
    for line in output.decode().splitlines():
        file, client, name, value = line.split("\t")
        outcomes_by_user.setdefault((Path(file).stem, client), {})[name] = int(value)
    all_users = [f"{mechanism}_{way}" for mechanism, way in product(MECHANISMS, second_fleet.bootstraps)]
    assert outcomes_by_user.keys() == set(product(all_users, ("producer", "consumer")))
    for who, values in outcomes_by_user.items():
        assert values["successful-reauthentication-total"] >= 5, who
        assert values["failed-reauthentication-total"] == 0, who
        # More often than there were connections: at least one has authenticated twice.
        assert values["successful-reauthentication-total"] > values["connection-creation-total"] > 0, who
    for each in all_users:
        assert outcomes_by_user[each, "consumer"]["read"] == outcomes_by_user[each, "producer"]["sent"] > 0
