"""The configurations that are blanked."""

from __future__ import annotations

import pytest

from fleet.proxy.wire.configs import carries_address


@pytest.mark.parametrize(
    "name",
    [
        "listeners",
        "advertised.listeners",
        "controller.quorum.voters",
        "controller.quorum.bootstrap.servers",
        "zookeeper.connect",
        "port",
        "advertised.port",
        "host.name",
        "advertised.host.name",
        "rlmm.config.remote.log.metadata.common.client.bootstrap.servers",
        "confluent.http.server.advertised.listeners",
    ],
)
def test_addresses_are_known_by_name(name: str) -> None:
    assert carries_address(memoryview(name.encode()))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "listener.security.protocol.map",
        "broker.rack",
        "log.dirs",
        "support",
        "min.insync.replicas",
        "xlisteners",
    ],
)
def test_other_configurations_stay(name: str) -> None:
    assert not carries_address(memoryview(name.encode()))
