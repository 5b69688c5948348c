"""What strangers' bytes cost a worker, in every state of a connection; see `tests.fuzz.cost`."""

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
from tests.fuzz.corpus import kept
from tests.fuzz.cost import (
    CUTS,
    FLOODS,
    MOST_HELD_BYTES,
    TAGGED,
    Excess,
    Flood,
    Input,
    check_growth,
    check_memory,
    check_opcodes,
    count,
    parse,
    weigh,
)
from tests.fuzz.seeds import seeds
from tests.fuzz.stand import MODES, OF_CLIENT, READ_BYTES, Mode, Spent, Stand
from tests.fuzz.stand import States as S
from tests.fuzz.target import ASKED, asking
from tests.property.wire_fleet import small_slices

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.interpreted]

SEED = 1
FEW_EVERY, MANY_EVERY = 41, 8
"""Every 41st input comes in short reads, every 8th in long ones, each in another state and mode."""
WITHOUT_BROKER = (S.IDLE, S.BEYOND, S.DIALING, S.UNKNOWN, S.SHAKING, S.GOODBYE)
BY_NAME = {each.name: each for each in FLOODS}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def paper(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stand]:
    """What is made once, by the first connection of a kind, is there. References alone free memory."""
    made = Stand(tmp_path_factory.mktemp("cost"))
    for mode, state in product(MODES, OF_CLIENT):
        if state in FLOODS[0].states(mode):
            await weigh(made, state, mode, FLOODS[0].of(100), READ_BYTES)
    gc.collect()
    gc.freeze()
    gc.disable()
    with patch.object(
        counters.log, "disabled", True
    ):  # pytest keeps what is logged, and errors that have frames
        yield made
    gc.enable()
    gc.unfreeze()


def sampled(every: int) -> Iterable[tuple[Input, S, Mode, int]]:
    """Inputs of the fuzzer, each with a state, a mode and a size of reads."""
    for number, data in enumerate([*seeds(SEED), *kept()][::every]):
        given, mode = parse(data), MODES[number % len(MODES)]
        states = given.states(mode)
        yield given, states[number // len(MODES) % len(states)], mode, CUTS[number % len(CUTS)]


async def check(made: Stand, given: Input, state: S, mode: Mode, read_bytes: int) -> None:
    """Raises: Excess."""
    try:
        check_opcodes(await count(made, state, mode, given, read_bytes))
        memory, spent = await weigh(made, state, mode, given, read_bytes, broker_reads=False)
        check_memory(memory, spent)
    except Excess as error:
        error.add_note(f"{state}, {mode}, {read_bytes} bytes in a read: {given}")
        raise


async def test_some_inputs_cost_no_more_than_they_may(paper: Stand) -> None:
    for given, state, mode, read_bytes in sampled(FEW_EVERY):
        await check(paper, given, state, mode, read_bytes)


async def test_inputs_cost_no_more_than_they_may(paper: Stand) -> None:
    for given, state, mode, read_bytes in sampled(MANY_EVERY):
        await check(paper, given, state, mode, read_bytes)


async def test_half_a_request_of_each_kind_costs_no_more_than_it_may(paper: Stand) -> None:
    for number, api in enumerate(ASKED):
        whole, mode = asking(api, 1), MODES[number % len(MODES)]
        given = Input((("client", whole[: len(whole) // 2]),))
        states = given.states(mode)
        check_opcodes(await count(paper, states[number // len(MODES) % len(states)], mode, given, 1))


async def count_twice(
    made: Stand, flood: Flood, state: S, mode: Mode, read_bytes: int
) -> tuple[Spent, Spent]:
    """The opcodes of some bytes, and of twice as many."""
    size_bytes = flood.counted_bytes(read_bytes)
    once = await count(made, state, mode, flood.of(size_bytes), read_bytes)
    return once, await count(made, state, mode, flood.of(2 * size_bytes), read_bytes)


@pytest.mark.parametrize("mode", [MODES[0], MODES[-1]])
@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.name)
async def test_twice_as_much_of_a_flood_costs_twice_as_much(paper: Stand, flood: Flood, mode: Mode) -> None:
    for number, state in enumerate(flood.states(mode)):
        for read_bytes in CUTS[number % 3 :: 3]:
            once, twice = await count_twice(paper, flood, state, mode, read_bytes)
            try:
                check_growth(once, twice)
                check_opcodes(twice)
            except Excess as error:
                error.add_note(f"{state}, {read_bytes} bytes in a read")
                raise


@pytest.mark.parametrize("mode", [MODES[0], MODES[-1]])
@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.name)
async def test_a_flood_is_not_kept(paper: Stand, flood: Flood, mode: Mode) -> None:
    for state in flood.states(mode):
        for broker_reads in (False,) if state in WITHOUT_BROKER or flood.peer == "broker" else (False, True):
            given = flood.of(flood.weighed_bytes)
            memory, spent = await weigh(paper, state, mode, given, READ_BYTES, broker_reads)
            try:
                check_memory(memory, spent)
            except Excess as error:
                error.add_note(f"{state}, broker reads: {broker_reads}")
                raise


@pytest.mark.parametrize(
    "flood", [each for each in FLOODS if each.of(100).asks], ids=lambda flood: flood.name
)
async def test_a_flood_of_a_broker_is_not_refused(paper: Stand, flood: Flood) -> None:
    """Found: "partitions" had four bytes too many before them, and was refused at its first byte."""
    given = flood.of(flood.few_bytes)
    scene = await paper.scene(S.JOINED, "plaintext", given.asks)
    cost.feed(scene, given, READ_BYTES)
    connection = scene.connection
    await scene.lose()
    assert connection.end != "refused"
    assert not connection.session.in_response


async def test_header_with_all_tags_costs_no_more_than_it_may(paper: Stand) -> None:
    """It is read again with each byte, up to the last one that is there."""
    given = Input((("client", cost.tagged(produce.MAX_HEADER_TAGS * cost.TAG_BYTES)),))
    for state in (S.JOINED, S.DRAINING):
        check_opcodes(await count(paper, state, "plaintext", given, 1), TAGGED)


BYTE_BY_BYTE = Input((("client", cost.body(4_000)),))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("state", [S.JOINED, S.CROWDED, S.DRAINING, S.PART, S.HELD, S.WORKING])
async def test_body_that_comes_byte_by_byte_is_not_kept(paper: Stand, state: S, mode: Mode) -> None:
    """With TLS, a record that has one byte comes in two reads."""
    given, read_bytes = replace(BYTE_BY_BYTE, record_bytes=1), 1 if mode == "plaintext" else 13
    check_memory(*await weigh(paper, state, mode, given, read_bytes, broker_reads=False))


# ---- whether a limit that is missing would be found

MANY_BYTES = 2 * MOST_HELD_BYTES
A_PACKET = 1448


def do_nothing(*_: object) -> None:
    pass


async def test_tags_without_a_limit_would_be_found(paper: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "MAX_HEADER_TAGS", 1 << 30)
    spent = [
        await count(paper, S.JOINED, "plaintext", Input((("client", cost.tagged(size_bytes)),)), 7)
        for size_bytes in (1_000, 2_000)
    ]
    with pytest.raises(Excess):
        check_opcodes(spent[0], TAGGED)
    with pytest.raises(Excess):
        check_growth(*spent)


async def test_slices_without_a_limit_would_be_found(paper: Stand) -> None:
    with small_slices(1 << 30, rewriter.AT_ONCE_BYTES):
        for name in ("configurations", "coordinators"):
            flood = BY_NAME[name]
            spent = await count(paper, S.JOINED, "plaintext", flood.of(flood.many_bytes), READ_BYTES)
            with pytest.raises(Excess):
                check_opcodes(spent)


@pytest.mark.parametrize("state", [S.IDLE, S.BEYOND])
async def test_replies_that_nobody_reads_would_be_found(
    paper: Stand, monkeypatch: pytest.MonkeyPatch, state: S
) -> None:
    monkeypatch.setattr(ClientConnection, "pause_writing", do_nothing)
    given = BY_NAME["impossible ApiVersions"].of(MANY_BYTES)
    with pytest.raises(Excess):
        check_memory(*await weigh(paper, state, "plaintext", given, A_PACKET))


@pytest.mark.parametrize("mode", MODES)
async def test_answers_that_nobody_reads_would_be_found(
    paper: Stand, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    monkeypatch.setattr(ClientConnection, "_check_backlog", do_nothing)
    given = BY_NAME["a long answer"].of(MANY_BYTES)
    with pytest.raises(Excess):
        check_memory(*await weigh(paper, S.JOINED, mode, given, A_PACKET))


async def test_held_response_that_nobody_reads_would_be_found(
    paper: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response that is rewritten is held once, and waits for its client once more."""
    monkeypatch.setattr(BrokerConnection, "pause_reading", do_nothing)
    given = BY_NAME["coordinators"].of(1_000_000)
    with pytest.raises(Excess):
        check_memory(*await weigh(paper, S.JOINED, "plaintext", given, READ_BYTES))


async def test_request_that_no_broker_reads_would_be_found(
    paper: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BrokerConnection, "pause_writing", do_nothing)
    given = Input((("client", cost.body(MANY_BYTES)),))
    with pytest.raises(Excess):
        check_memory(*await weigh(paper, S.JOINED, "plaintext", given, READ_BYTES, broker_reads=False))


async def test_writes_that_are_not_counted_would_be_found(
    paper: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: they were not, and each takes much more than its bytes."""
    monkeypatch.setattr(connection, "WRITE_OVERHEAD_BYTES", 0)
    with pytest.raises(Excess):
        check_memory(*await weigh(paper, S.JOINED, "plaintext", BYTE_BY_BYTE, 1, broker_reads=False))


async def test_requests_in_flight_without_a_limit_would_be_found(
    paper: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MANY_IN_FLIGHT", 1 << 30)
    given = BY_NAME["requests"].of(MANY_BYTES // 2)
    with pytest.raises(Excess):
        check_memory(*await weigh(paper, S.JOINED, "plaintext", given, READ_BYTES))


@pytest.mark.parametrize("state", [S.DIALING, S.UNKNOWN])
async def test_requests_that_wait_for_a_broker_would_be_found(
    paper: Stand, monkeypatch: pytest.MonkeyPatch, state: S
) -> None:
    monkeypatch.setattr(ClientConnection, "hold", do_nothing)
    given = BY_NAME["requests without a response"].of(MANY_BYTES)
    with pytest.raises(Excess):
        check_memory(*await weigh(paper, state, "plaintext", given, READ_BYTES))


async def test_new_keys_without_a_limit_would_be_found(paper: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_transport, "MAX_BYTES_WITHOUT_DATA", 1 << 30)
    monkeypatch.setattr(tls_transport.TlsTransport, "pause_writing", do_nothing)
    given = BY_NAME["new keys"].of(MOST_HELD_BYTES)
    with pytest.raises(Excess):
        check_memory(*await weigh(paper, S.JOINED, "TLS 1.3", given, A_PACKET))


async def test_client_ids_that_stay_would_be_found(paper: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: they did, until control was told of them."""
    monkeypatch.setattr(session, "MAX_REPORTED_CLIENT_ID_BYTES", 1 << 15)
    given = BY_NAME["a long client id"].of(1 << 15)
    with pytest.raises(Excess):
        check_memory(*await weigh(paper, S.IDLE, "plaintext", given, READ_BYTES))
