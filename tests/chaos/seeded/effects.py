"""Observes from outside whether a fault has its effect, and whether the effect has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from fleet.admin.documents import OwnershipDocument
from fleet.core.errors import AdminError, FaultNotObserved
from fleet.core.model import Liveness
from fleet.drills.workload.waiting import eventually, in_thread
from tests.chaos.seeded.network import Link, hang_up, knock

PROOF_LIMIT_S: Final = 5.0
_SILENCE_S = 1.0
_POLL_INTERVAL_S = 0.05


def find_child(supervisor_pid: int, place: str) -> psutil.Process | None:
    """The child of a supervisor with a place such as ``p1/control`` in its command line; None without one."""
    for process in psutil.Process(supervisor_pid).children(recursive=True):
        try:
            if place in process.cmdline():
                return process
        except psutil.NoSuchProcess:
            continue
    return None


def is_gone(process: psutil.Process) -> bool:
    """Whether a process has ended. A zombie, which only waits to be reaped, has ended."""
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
    """Whether a process runs, and the former process has ended.

    psutil compares start times, too, because the kernel reuses process ids.
    """
    return process != former and is_gone(former) and not is_gone(process)


def hears_all(document: OwnershipDocument) -> bool:
    """Whether a member has a quorum, and considers every other member alive."""
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
    """Wait until a non-blocking condition holds. Raises: FaultNotObserved: it does not hold in time."""
    if not await eventually(condition, PROOF_LIMIT_S):
        raise FaultNotObserved(f"{what}: not observed within {PROOF_LIMIT_S:.0f} s")


async def becomes(condition: Callable[[], bool], limit_s: float) -> bool:
    """Wait for a blocking condition. It does not hold if a member does not answer."""

    def holds() -> bool:
        try:
            return condition()
        except AdminError:
            return False

    deadline_s = time.monotonic() + limit_s
    while not await in_thread(holds):
        if time.monotonic() > deadline_s:
            return False
        await asyncio.sleep(_POLL_INTERVAL_S)
    return True


async def prove_black(link: Link) -> str:
    """Check that a link stays open without an answer. Returns: the proof.

    Raises: FaultNotObserved: an answer arrives, or the link breaks.
    """
    answer = await knock(link.at, _SILENCE_S)
    if answer.broken or answer.took_s is not None:
        raise FaultNotObserved(f"{link.at} is not a black hole: {answer}")
    return f"no answer within {_SILENCE_S:.0f} s"


async def time_of_answer(link: Link) -> float:
    """Seconds until a Kafka server behind a link answers. Raises: FaultNotObserved: no answer."""
    answer = await knock(link.at, PROOF_LIMIT_S)
    if answer.took_s is None:
        raise FaultNotObserved(f"{link.at} does not answer")
    return answer.took_s


async def time_of_hanging_up(link: Link) -> float:
    """Seconds until a member behind a link closes a foreign connection.

    Raises: FaultNotObserved: the member leaves the connection open.
    """
    took_s = await hang_up(link.at, PROOF_LIMIT_S)
    if took_s is None:
        raise FaultNotObserved(f"{link.at} does not close a foreign connection")
    return took_s
