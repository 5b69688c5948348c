"""How to see that a fault has its effect, and that it has none any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from fleet.admin.documents import OwnershipDocument
from fleet.core.errors import AdminError, DemoError
from fleet.core.model import Liveness
from fleet.drills.workload.waiting import eventually, in_thread
from tests.chaos.seeded.network import Link, hang_up, knock

PROOF_LIMIT_S: Final = 5.0
_NOTHING_FOR_S = 1.0
_EVERY_S = 0.05


class NoEffect(DemoError):
    """A fault was injected, and nothing shows that it happened."""


def find_child(supervisor_pid: int, place: str) -> psutil.Process | None:
    """A child of a supervisor by its place, such as ``p1/control``, which is in its command line."""
    for process in psutil.Process(supervisor_pid).children(recursive=True):
        try:
            if place in process.cmdline():
                return process
        except psutil.NoSuchProcess:
            continue
    return None


def is_gone(process: psutil.Process) -> bool:
    """Whether a process has ended; a zombie, which only waits to be reaped, has."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def is_stopped(process: psutil.Process) -> bool:
    """Whether a process is in the kernel's state T."""
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def is_another(process: psutil.Process, former: psutil.Process) -> bool:
    """Whether a process runs, and the one before it has ended; by its time of birth, too: ids come again."""
    return process != former and is_gone(former) and not is_gone(process)


def hears_all(document: OwnershipDocument) -> bool:
    """Whether a member has a quorum, and holds every other one for alive."""
    return document.quorum.present and all(
        each.connected and each.liveness is Liveness.UP
        for each in document.members
        if each.proxy_id != document.proxy_id
    )


def in_sync(client: AdminClient) -> bool:
    """Whether every partition of every topic has all its replicas."""
    try:
        topics = client.list_topics(timeout=5.0).topics.values()
    except KafkaException:
        return False
    return all(len(each.isrs) == len(each.replicas) for topic in topics for each in topic.partitions.values())


async def prove(condition: Callable[[], bool], what: str) -> None:
    """Wait until something that does not block is seen. Raises: NoEffect: it is not."""
    if not await eventually(condition, PROOF_LIMIT_S):
        raise NoEffect(f"{what}: not seen within {PROOF_LIMIT_S:.0f} s")


async def becomes(condition: Callable[[], bool], limit_s: float) -> bool:
    """Wait for a condition that blocks, and that holds not where nobody answers."""

    def holds() -> bool:
        try:
            return condition()
        except AdminError:
            return False

    deadline_s = time.monotonic() + limit_s
    while not await in_thread(holds):
        if time.monotonic() > deadline_s:
            return False
        await asyncio.sleep(_EVERY_S)
    return True


async def prove_black(link: Link) -> str:
    """Nothing comes back over a link, and it stands. Raises: NoEffect: something does, or it is broken."""
    answer = await knock(link.at, _NOTHING_FOR_S)
    if answer.broken or answer.took_s is not None:
        raise NoEffect(f"something came back over {link.at}, which is a black hole: {answer}")
    return f"no answer within {_NOTHING_FOR_S:.0f} s"


async def time_of_answer(link: Link) -> float:
    """Seconds until a Kafka server behind a link answers. Raises: NoEffect: it does not."""
    answer = await knock(link.at, PROOF_LIMIT_S)
    if answer.took_s is None:
        raise NoEffect(f"{link.at} does not answer")
    return answer.took_s


async def time_of_hanging_up(link: Link) -> float:
    """Seconds until a member behind a link hangs up on a stranger. Raises: NoEffect: it does not."""
    took_s = await hang_up(link.at, PROOF_LIMIT_S)
    if took_s is None:
        raise NoEffect(f"{link.at} does not hang up on strangers")
    return took_s
