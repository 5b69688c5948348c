"""The cost of a stranger's bytes to a worker, in every state of a connection; see `tests.fuzz.cost`."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from itertools import product
from unittest.mock import patch

import pytest
import pytest_asyncio

from fleet.proxy import connection, counters, rewriter, session, tls_transport
from fleet.proxy.broker_connection import BrokerConnection
from fleet.proxy.connection import ClientConnection
from fleet.proxy.wire import produce
from tests.fuzz import cost
from tests.fuzz.corpus import read_corpus
from tests.fuzz.cost import (
    FLOODS,
    MAX_HELD_BYTES,
    READ_SIZES_BYTES,
    TAGGED_ALLOWANCE,
    CostExceeded,
    Flood,
    Input,
    check_growth,
    check_memory,
    check_opcodes,
    count_opcodes,
    measure_memory,
    parse,
)
from tests.fuzz.seeds import seeds
from tests.fuzz.target import ANSWERED_APIS, make_request
from tests.fuzz.worker_harness import CLIENT_STATES, MODES, READ_BYTES, Mode, Usage, WorkerHarness
from tests.fuzz.worker_harness import ConnectionState as S
from tests.property.wire_fleet import small_slices

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.interpreted]

SEED = 1
SHORT_READ_INTERVAL, LONG_READ_INTERVAL = 41, 8
"""Every 41st input comes in short reads, every 8th in long reads, each in a different state and mode."""
STATES_WITHOUT_BROKER = (S.IDLE, S.OVER_LIMIT, S.DIALING, S.UNKNOWN, S.SHAKING, S.GOODBYE)
FLOODS_BY_NAME = {each.name: each for each in FLOODS}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def workers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WorkerHarness]:
    """Workers that have served each kind of connection once.

    The garbage collector is off, so references free memory.
    """
    workers = WorkerHarness(tmp_path_factory.mktemp("cost"))
    for mode, state in product(MODES, CLIENT_STATES):
        if state in FLOODS[0].states(mode):
            await measure_memory(workers, state, mode, FLOODS[0].sized(100), READ_BYTES)
    gc.collect()
    gc.freeze()
    gc.disable()
    with patch.object(
        counters.log, "disabled", True
    ):  # pytest keeps what is logged, and errors that have frames
        yield workers
    gc.enable()
    gc.unfreeze()


def sample_inputs(every: int) -> Iterable[tuple[Input, S, Mode, int]]:
    """Sample the fuzzer's inputs, each with a state, a mode and a read size."""
    for number, data in enumerate([*seeds(SEED), *read_corpus()][::every]):
        fuzz_input, mode = parse(data), MODES[number % len(MODES)]
        states = fuzz_input.states(mode)
        yield (
            fuzz_input,
            states[number // len(MODES) % len(states)],
            mode,
            READ_SIZES_BYTES[number % len(READ_SIZES_BYTES)],
        )


async def check_cost(
    workers: WorkerHarness, fuzz_input: Input, state: S, mode: Mode, read_bytes: int
) -> None:
    """Raises: CostExceeded: the input costs more opcodes or memory than its limit."""
    try:
        check_opcodes(await count_opcodes(workers, state, mode, fuzz_input, read_bytes))
        memory, usage = await measure_memory(workers, state, mode, fuzz_input, read_bytes, broker_reads=False)
        check_memory(memory, usage)
    except CostExceeded as error:
        error.add_note(f"{state}, {mode}, {read_bytes} bytes in a read: {fuzz_input}")
        raise


async def test_some_inputs_cost_no_more_than_they_may(workers: WorkerHarness) -> None:
    for fuzz_input, state, mode, read_bytes in sample_inputs(SHORT_READ_INTERVAL):
        await check_cost(workers, fuzz_input, state, mode, read_bytes)


async def test_inputs_cost_no_more_than_they_may(workers: WorkerHarness) -> None:
    for fuzz_input, state, mode, read_bytes in sample_inputs(LONG_READ_INTERVAL):
        await check_cost(workers, fuzz_input, state, mode, read_bytes)


async def test_half_a_request_of_each_kind_costs_no_more_than_it_may(workers: WorkerHarness) -> None:
    for number, api in enumerate(ANSWERED_APIS):
        whole, mode = make_request(api, 1), MODES[number % len(MODES)]
        fuzz_input = Input((("client", whole[: len(whole) // 2]),))
        states = fuzz_input.states(mode)
        check_opcodes(
            await count_opcodes(workers, states[number // len(MODES) % len(states)], mode, fuzz_input, 1)
        )


async def count_twice(
    workers: WorkerHarness, flood: Flood, state: S, mode: Mode, read_bytes: int
) -> tuple[Usage, Usage]:
    """Count the opcodes of a flood and of twice as many bytes."""
    size_bytes = flood.counted_bytes(read_bytes)
    once = await count_opcodes(workers, state, mode, flood.sized(size_bytes), read_bytes)
    return once, await count_opcodes(workers, state, mode, flood.sized(2 * size_bytes), read_bytes)


@pytest.mark.parametrize("mode", [MODES[0], MODES[-1]])
@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.name)
async def test_twice_as_much_of_a_flood_costs_twice_as_much(
    workers: WorkerHarness, flood: Flood, mode: Mode
) -> None:
    for number, state in enumerate(flood.states(mode)):
        for read_bytes in READ_SIZES_BYTES[number % 3 :: 3]:
            once, twice = await count_twice(workers, flood, state, mode, read_bytes)
            try:
                check_growth(once, twice)
                check_opcodes(twice)
            except CostExceeded as error:
                error.add_note(f"{state}, {read_bytes} bytes in a read")
                raise


@pytest.mark.parametrize("mode", [MODES[0], MODES[-1]])
@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.name)
async def test_a_flood_is_not_kept(workers: WorkerHarness, flood: Flood, mode: Mode) -> None:
    for state in flood.states(mode):
        for broker_reads in (
            (False,) if state in STATES_WITHOUT_BROKER or flood.peer == "broker" else (False, True)
        ):
            fuzz_input = flood.sized(flood.memory_bytes)
            memory, usage = await measure_memory(workers, state, mode, fuzz_input, READ_BYTES, broker_reads)
            try:
                check_memory(memory, usage)
            except CostExceeded as error:
                error.add_note(f"{state}, broker reads: {broker_reads}")
                raise


@pytest.mark.parametrize(
    "flood", [each for each in FLOODS if each.sized(100).sent_requests], ids=lambda flood: flood.name
)
async def test_a_flood_of_a_broker_is_not_refused(workers: WorkerHarness, flood: Flood) -> None:
    """Regression: "partitions" had four extra bytes in front and was refused at its first byte."""
    fuzz_input = flood.sized(flood.few_bytes)
    harness = await workers.open_connection(S.JOINED, "plaintext", fuzz_input.sent_requests)
    cost.send_input(harness, fuzz_input, READ_BYTES)
    connection = harness.connection
    await harness.lose_connection()
    assert connection.end != "refused"
    assert not connection.session.in_response


async def test_header_with_all_tags_costs_no_more_than_it_may(workers: WorkerHarness) -> None:
    """Each byte makes the worker parse the header again, up to the newest byte."""
    fuzz_input = Input((("client", cost.tagged_produce(produce.MAX_HEADER_TAGS * cost.TAG_BYTES)),))
    for state in (S.JOINED, S.DRAINING):
        check_opcodes(await count_opcodes(workers, state, "plaintext", fuzz_input, 1), TAGGED_ALLOWANCE)


LONG_PRODUCE = Input((("client", cost.produce_body(4_000)),))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("state", [S.JOINED, S.CROWDED, S.DRAINING, S.PARTIAL, S.HELD, S.WORKING])
async def test_body_that_comes_byte_by_byte_is_not_kept(workers: WorkerHarness, state: S, mode: Mode) -> None:
    """With TLS, a record of one byte arrives in two reads."""
    fuzz_input, read_bytes = replace(LONG_PRODUCE, record_bytes=1), 1 if mode == "plaintext" else 13
    check_memory(*await measure_memory(workers, state, mode, fuzz_input, read_bytes, broker_reads=False))


# ---- a missing limit makes a check fail

FLOOD_BYTES = 2 * MAX_HELD_BYTES
PACKET_BYTES = 1448


def ignore_call(*_: object) -> None:
    pass


async def test_tags_without_a_limit_would_be_found(
    workers: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "MAX_HEADER_TAGS", 1 << 30)
    usage = [
        await count_opcodes(
            workers, S.JOINED, "plaintext", Input((("client", cost.tagged_produce(size_bytes)),)), 7
        )
        for size_bytes in (1_000, 2_000)
    ]
    with pytest.raises(CostExceeded):
        check_opcodes(usage[0], TAGGED_ALLOWANCE)
    with pytest.raises(CostExceeded):
        check_growth(*usage)


async def test_slices_without_a_limit_would_be_found(workers: WorkerHarness) -> None:
    with small_slices(1 << 30, rewriter.AT_ONCE_BYTES):
        for name in ("configurations", "coordinators"):
            flood = FLOODS_BY_NAME[name]
            usage = await count_opcodes(
                workers, S.JOINED, "plaintext", flood.sized(flood.many_bytes), READ_BYTES
            )
            with pytest.raises(CostExceeded):
                check_opcodes(usage)


@pytest.mark.parametrize("state", [S.IDLE, S.OVER_LIMIT])
async def test_replies_that_nobody_reads_would_be_found(
    workers: WorkerHarness, monkeypatch: pytest.MonkeyPatch, state: S
) -> None:
    monkeypatch.setattr(ClientConnection, "pause_writing", ignore_call)
    fuzz_input = FLOODS_BY_NAME["impossible ApiVersions"].sized(FLOOD_BYTES)
    with pytest.raises(CostExceeded):
        check_memory(*await measure_memory(workers, state, "plaintext", fuzz_input, PACKET_BYTES))


@pytest.mark.parametrize("mode", MODES)
async def test_answers_that_nobody_reads_would_be_found(
    workers: WorkerHarness, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    monkeypatch.setattr(ClientConnection, "_check_backlog", ignore_call)
    fuzz_input = FLOODS_BY_NAME["a long answer"].sized(FLOOD_BYTES)
    with pytest.raises(CostExceeded):
        check_memory(*await measure_memory(workers, S.JOINED, mode, fuzz_input, PACKET_BYTES))


async def test_held_response_that_nobody_reads_would_be_found(
    workers: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rewritten response is held once, and waits for its client a second time."""
    monkeypatch.setattr(BrokerConnection, "pause_reading", ignore_call)
    fuzz_input = FLOODS_BY_NAME["coordinators"].sized(1_000_000)
    with pytest.raises(CostExceeded):
        check_memory(*await measure_memory(workers, S.JOINED, "plaintext", fuzz_input, READ_BYTES))


async def test_request_that_no_broker_reads_would_be_found(
    workers: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BrokerConnection, "pause_writing", ignore_call)
    fuzz_input = Input((("client", cost.produce_body(FLOOD_BYTES)),))
    with pytest.raises(CostExceeded):
        check_memory(
            *await measure_memory(workers, S.JOINED, "plaintext", fuzz_input, READ_BYTES, broker_reads=False)
        )


async def test_writes_that_are_not_counted_would_be_found(
    workers: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the worker did not count writes, and each takes much more memory than its bytes."""
    monkeypatch.setattr(connection, "WRITE_OVERHEAD_BYTES", 0)
    with pytest.raises(CostExceeded):
        check_memory(
            *await measure_memory(workers, S.JOINED, "plaintext", LONG_PRODUCE, 1, broker_reads=False)
        )


async def test_requests_in_flight_without_a_limit_would_be_found(
    workers: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MANY_IN_FLIGHT", 1 << 30)
    fuzz_input = FLOODS_BY_NAME["requests"].sized(FLOOD_BYTES // 2)
    with pytest.raises(CostExceeded):
        check_memory(*await measure_memory(workers, S.JOINED, "plaintext", fuzz_input, READ_BYTES))


@pytest.mark.parametrize("state", [S.DIALING, S.UNKNOWN])
async def test_requests_that_wait_for_a_broker_would_be_found(
    workers: WorkerHarness, monkeypatch: pytest.MonkeyPatch, state: S
) -> None:
    monkeypatch.setattr(ClientConnection, "hold", ignore_call)
    fuzz_input = FLOODS_BY_NAME["requests without a response"].sized(FLOOD_BYTES)
    with pytest.raises(CostExceeded):
        check_memory(*await measure_memory(workers, state, "plaintext", fuzz_input, READ_BYTES))


async def test_new_keys_without_a_limit_would_be_found(
    workers: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_transport, "MAX_BYTES_WITHOUT_DATA", 1 << 30)
    monkeypatch.setattr(tls_transport.TlsTransport, "pause_writing", ignore_call)
    fuzz_input = FLOODS_BY_NAME["new keys"].sized(MAX_HELD_BYTES)
    with pytest.raises(CostExceeded):
        check_memory(*await measure_memory(workers, S.JOINED, "TLS 1.3", fuzz_input, PACKET_BYTES))


async def test_client_ids_that_stay_would_be_found(
    workers: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: client ids stayed in memory until the worker reported them to control."""
    monkeypatch.setattr(session, "MAX_REPORTED_CLIENT_ID_BYTES", 1 << 15)
    fuzz_input = FLOODS_BY_NAME["a long client id"].sized(1 << 15)
    with pytest.raises(CostExceeded):
        check_memory(*await measure_memory(workers, S.IDLE, "plaintext", fuzz_input, READ_BYTES))
