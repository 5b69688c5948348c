"""Which real brokers there are, asked of the cluster itself."""

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

NEXT_AFTER_S: Final = 0.5
"""After which the next server is asked, too: one may be silent."""
_CLIENT_ID: Final = "fleet-discovery"


async def discover(servers: Sequence[Endpoint], access: KafkaAccess, timeout_s: float) -> tuple[Broker, ...]:
    """The brokers in the cluster's Metadata, from the first server that answers; asked are ever more of them.

    A new connection each time: it finds a cluster again that came back elsewhere.

    Raises: NoMetadata: none answers in time; says why of each that was asked
    """
    reasons: dict[Endpoint, str] = {}
    refused = False
    asking: dict[asyncio.Task[tuple[Broker, ...]], Endpoint] = {}
    try:
        options = access.options()
        async with asyncio.timeout(timeout_s):
            left = random.sample(servers, len(servers))
            while left or asking:
                if left:
                    server = left.pop()
                    reasons[server] = "timed out"
                    asking[asyncio.create_task(_ask(server, options, timeout_s))] = server
                done, _ = await asyncio.wait(
                    asking, timeout=NEXT_AFTER_S if left else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    server = asking.pop(task)
                    try:
                        return task.result()
                    except NoMetadata as error:
                        reasons[server], refused = str(error), refused or error.refused
    except TimeoutError:
        pass
    except (ConfigError, OSError) as error:
        raise NoMetadata(str(error)) from None
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    said = "; ".join(sorted(f"{server}: {why}" for server, why in reasons.items()))
    raise NoMetadata(said, refused=refused)


async def _ask(server: Endpoint, options: Options, timeout_s: float) -> tuple[Broker, ...]:
    """The brokers that one server knows of. Raises: NoMetadata."""
    # Imported here: it takes longer than all the rest of a control process that has to be back soon.
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
            raise NoMetadata(f"gives no Metadata: {error}") from error
        raise NoMetadata(f"gives no Metadata to who has no credentials ({error})", refused=True) from error
    finally:
        connection.close()
    named = [Broker(each[0], each[1], each[2], each[3] or None) for each in answer.brokers]
    found = [broker for broker in named if is_address(broker.host, broker.port)]
    if found != named:
        strange = [broker for broker in named if broker not in found]
        log.warning("%s names brokers where nobody can be dialled: %r", server, strange)
    if not found and "sasl_oauth_token_provider" in options:
        # The client takes any answer to its token for an agreement, and the broker then lists nothing.
        raise NoMetadata("has refused the token, or knows of no brokers")
    if not found:
        raise NoMetadata("knows of no brokers")
    return tuple(sorted(found, key=lambda broker: broker.broker_id))
