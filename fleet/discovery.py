"""Which real brokers there are, asked of the cluster itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from fleet.model import Broker, Endpoint

log = logging.getLogger(__name__)

_CLIENT_ID: Final = "fleet-discovery"


async def discover(bootstrap_servers: Iterable[Endpoint], timeout_s: float) -> tuple[Broker, ...]:
    """The brokers in the cluster's Metadata; none where no bootstrap server answers in time.

    A new client each time: it costs two connections, and finds a cluster again that came back elsewhere.
    """
    # Imported here: it takes longer than all the rest of a control process that has to be back soon.
    from aiokafka.client import AIOKafkaClient
    from aiokafka.errors import KafkaError

    client = AIOKafkaClient(
        bootstrap_servers=[str(endpoint) for endpoint in bootstrap_servers],
        client_id=_CLIENT_ID,
        request_timeout_ms=int(timeout_s * 1000),
    )
    try:
        async with asyncio.timeout(timeout_s):
            await client.bootstrap()
        found = [
            Broker(node.nodeId, node.host, node.port, node.rack or None)
            for node in client.cluster.brokers()
            # Before the first answer aiokafka holds the bootstrap servers, under names instead of ids.
            if isinstance(node.nodeId, int) and node.nodeId >= 0
        ]
    except (KafkaError, OSError) as error:
        log.debug("no Metadata from any of the bootstrap servers: %s", error)
        return ()
    finally:
        await client.close()
    return tuple(sorted(found, key=lambda broker: broker.broker_id))
