"""Discovery of the real brokers from the cluster's Metadata."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Final

from fleet.core.errors import ConfigError, NoMetadata
from fleet.core.model import Broker, Endpoint, is_address
from fleet.tls.broker_credentials import CLIENT_ERRORS, KafkaAccess, Options
from fleet.tls.brokers import explain_dial

log = logging.getLogger(__name__)

NEXT_SERVER_DELAY_S: Final = 0.5
"""How long to wait for an answer before the next server is asked in parallel, because a server may be
silent."""
_CLIENT_ID: Final = "fleet-discovery"


async def discover(servers: Sequence[Endpoint], access: KafkaAccess, timeout_s: float) -> tuple[Broker, ...]:
    """Get the brokers in the cluster's Metadata from the first server that answers.

    The servers are asked one after another, without waiting for a silent one to fail. Each query opens a new
    connection, so discovery finds a cluster that came back at other addresses.

    Raises: NoMetadata: no server answers in time; the message has the reason of each server
    """
    reasons: dict[Endpoint, str] = {}
    refused = False
    queries: dict[asyncio.Task[tuple[Broker, ...]], Endpoint] = {}
    try:
        options = access.options()
        async with asyncio.timeout(timeout_s):
            remaining = random.sample(servers, len(servers))
            while remaining or queries:
                if remaining:
                    server = remaining.pop()
                    reasons[server] = "timed out"
                    queries[asyncio.create_task(_query_server(server, options, timeout_s))] = server
                done, _ = await asyncio.wait(
                    queries,
                    timeout=NEXT_SERVER_DELAY_S if remaining else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    server = queries.pop(task)
                    try:
                        return task.result()
                    except NoMetadata as error:
                        reasons[server], refused = str(error), refused or error.refused
    except TimeoutError:
        pass
    except (ConfigError, OSError) as error:
        raise NoMetadata(str(error)) from None
    finally:
        for task in queries:
            task.cancel()
        await asyncio.gather(*queries, return_exceptions=True)
    details = "; ".join(sorted(f"{server}: {why}" for server, why in reasons.items()))
    raise NoMetadata(details, refused=refused)


async def _query_server(server: Endpoint, options: Options, timeout_s: float) -> tuple[Broker, ...]:
    """Get the brokers that one server lists. Raises: NoMetadata."""
    # Imported here: the import takes longer than the rest of a control process, which must restart fast.
    from aiokafka.conn import create_conn
    from aiokafka.errors import KafkaError
    from aiokafka.protocol.metadata import MetadataRequest

    timeout_ms = int(timeout_s * 1000)
    try:
        connection = await create_conn(
            server.host, server.port, client_id=_CLIENT_ID, request_timeout_ms=timeout_ms, **options
        )
    except OSError as error:
        raise NoMetadata(explain_dial(error)) from error
    except (KafkaError, *CLIENT_ERRORS) as error:
        raise NoMetadata(f"{type(error).__name__}: {error}") from error
    try:
        answer = await connection.send(MetadataRequest([]))
    except (KafkaError, OSError) as error:
        if "sasl_mechanism" in options:
            raise NoMetadata(f"sends no Metadata: {error}") from error
        raise NoMetadata(
            f"sends no Metadata to clients without credentials ({error})", refused=True
        ) from error
    finally:
        connection.close()
    named = [Broker(each[0], each[1], each[2], each[3] or None) for each in answer.brokers]
    brokers = [broker for broker in named if is_address(broker.host, broker.port)]
    if brokers != named:
        strange = [broker for broker in named if broker not in brokers]
        log.warning("%s lists brokers with invalid addresses: %r", server, strange)
    if not brokers and "sasl_oauth_token_provider" in options:
        # The client takes any answer to its token as acceptance. After a refusal the broker lists nothing.
        raise NoMetadata("refused the token, or lists no brokers")
    if not brokers:
        raise NoMetadata("lists no brokers")
    return tuple(sorted(brokers, key=lambda broker: broker.broker_id))
