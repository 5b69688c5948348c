import pytest

from fleet.core.model import Broker, Endpoint
from fleet.proxy.brokers import AVOID_FAILED_BROKER_S, BACKOFF_FIRST_S, BACKOFF_LIMIT_S, Candidate, Upstreams

SERVERS = (Endpoint("kafka-1", 9092), Endpoint("boot", 9092))
ONE, TWO = Broker(1, "kafka-1", 9092), Broker(2, "kafka-2", 9092)


def at(broker: Broker) -> Candidate:
    return Candidate(broker.broker_id, Endpoint(broker.host, broker.port))


def test_configured_servers_are_used_without_known_brokers() -> None:
    upstreams = Upstreams(SERVERS)
    assert upstreams.candidates(0.0) == [Candidate(None, each) for each in SERVERS]
    assert upstreams.broker(1) is None


def test_bootstrap_rotates_and_ends_with_configured_servers() -> None:
    upstreams = Upstreams(SERVERS)
    upstreams.commit({1: ONE, 2: TWO})
    first, second, third = (upstreams.candidates(0.0) for _ in range(3))
    assert {first[0], second[0]} == {at(ONE), at(TWO)}
    assert third == first
    # A configured server that is a known broker is not tried twice.
    assert first[2:] == [Candidate(None, SERVERS[1])]


def test_failed_broker_is_tried_last_for_a_time() -> None:
    upstreams = Upstreams(SERVERS)
    upstreams.commit({1: ONE, 2: TWO})
    assert upstreams.failed(at(ONE), 10.0)
    assert not upstreams.failed(at(ONE), 10.0)
    assert [upstreams.candidates(10.1)[-1] for _ in range(2)] == [at(ONE)] * 2
    assert upstreams.up == {1: False}
    assert at(ONE) in {upstreams.candidates(10.0 + AVOID_FAILED_BROKER_S)[0] for _ in range(2)}
    upstreams.succeeded(at(ONE))
    assert upstreams.up == {1: True}
    assert at(ONE) in {upstreams.candidates(10.1)[0] for _ in range(2)}


def test_removed_brokers_are_forgotten() -> None:
    upstreams = Upstreams(SERVERS)
    upstreams.commit({1: ONE, 2: TWO})
    upstreams.failed(at(TWO), 0.0)
    upstreams.commit({1: ONE})
    assert upstreams.up == {}
    assert upstreams.broker(2) is None


def test_down_broker_is_tried_one_at_a_time_with_backoff() -> None:
    upstreams = Upstreams(SERVERS)
    upstreams.commit({1: ONE})
    assert upstreams.admits(at(ONE), 0.0)
    assert upstreams.admits(at(ONE), 0.0), "the broker is not known to be down"
    upstreams.failed(at(ONE), 10.0)
    upstreams.failed(at(ONE), 10.0)
    now_s, waits_s = 10.0, []
    for _ in range(8):
        wait_s = 0.0
        while not upstreams.admits(at(ONE), now_s + wait_s):
            wait_s += BACKOFF_FIRST_S / 2
        assert not upstreams.admits(at(ONE), now_s + wait_s + 100.0), "another connection tries"
        now_s += wait_s
        upstreams.failed(at(ONE), now_s)
        waits_s.append(round(wait_s, 3))
    assert waits_s[:4] == [BACKOFF_FIRST_S, 2 * BACKOFF_FIRST_S, 4 * BACKOFF_FIRST_S, 8 * BACKOFF_FIRST_S]
    assert waits_s[-2:] == [BACKOFF_LIMIT_S] * 2
    assert upstreams.admits(at(ONE), now_s + BACKOFF_LIMIT_S)
    upstreams.given_up(at(ONE))
    assert upstreams.admits(at(ONE), now_s + BACKOFF_LIMIT_S), "the connection that tried has ended"
    upstreams.succeeded(at(ONE))
    assert upstreams.admits(at(ONE), now_s)
    assert upstreams.admits(at(TWO), now_s)


def test_unanswering_broker_is_tried_last() -> None:
    """Found: control's verdict expired after five seconds, and an accepted connection cancelled it."""
    upstreams = Upstreams(SERVERS)
    upstreams.commit({1: ONE, 2: TWO})
    upstreams.note_reachable({1: False, 2: True}, 10.0)
    upstreams.succeeded(at(ONE))
    assert upstreams.up == {1: False, 2: True}
    assert [upstreams.candidates(10.0 + 10 * AVOID_FAILED_BROKER_S)[-1] for _ in range(2)] == [at(ONE)] * 2
    assert upstreams.admits(at(ONE), 10.1), "its own clients get what they would get without the fleet"
    upstreams.note_reachable({1: True, 2: True}, 11.0)
    assert upstreams.up == {1: True, 2: True}
    assert at(ONE) in {upstreams.candidates(11.0)[0] for _ in range(2)}


def test_findings_of_control_apply_to_all_connections() -> None:
    upstreams = Upstreams(SERVERS)
    upstreams.commit({1: ONE, 2: TWO})
    upstreams.note_reachable({1: False, 2: True, 9: False}, 10.0)
    assert upstreams.up == {1: False, 2: True}
    assert not upstreams.admits(at(ONE), 10.0 + 0.9 * BACKOFF_LIMIT_S)
    assert [upstreams.candidates(10.1)[-1] for _ in range(2)] == [at(ONE)] * 2
    assert upstreams.admits(at(TWO), 10.0)
    # The broker may only be too slow for a probe, so one connection still tries it.
    assert upstreams.admits(at(ONE), 10.0 + BACKOFF_LIMIT_S)
    upstreams.note_reachable({1: False, 2: True}, 10.0 + BACKOFF_LIMIT_S)
    assert not upstreams.admits(at(ONE), 10.0 + BACKOFF_LIMIT_S)
    upstreams.note_reachable({1: True, 2: True}, 10.0 + BACKOFF_LIMIT_S)
    assert all(upstreams.admits(at(ONE), 10.0 + BACKOFF_LIMIT_S) for _ in range(2))


@pytest.mark.parametrize(
    ("host", "port", "is_ipv4"),
    [("192.0.2.1", 9092, True), ("192.0.2.1", 70_000, False), ("kafka-1", 9092, False), ("::1", 9092, False)],
)
def test_ipv4_address_needs_no_resolver(host: str, port: int, is_ipv4: bool) -> None:
    upstreams = Upstreams(SERVERS)
    upstreams.commit({1: Broker(1, host, port)})
    found = upstreams.broker(1)
    assert found is not None
    assert found.is_ipv4 is is_ipv4
