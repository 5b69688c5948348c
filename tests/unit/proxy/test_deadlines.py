"""Many deadlines with one timer: each expires at its own time, unless it has ended."""

import asyncio

from fleet.proxy.deadlines import Deadlines
from tests.integration.in_process.proxy.test_worker import eventually

LIMIT_S = 0.05


async def test_deadlines_expire_in_order() -> None:
    late: list[str] = []
    deadlines = Deadlines(LIMIT_S, late.append)
    for each in ("first", "end", "second"):
        deadlines.begin(each)
    deadlines.end("end")
    deadlines.end("never begun")
    await eventually(lambda: late == ["first", "second"], "both are late")
    assert len(deadlines) == 0


async def test_later_thing_gets_its_full_time() -> None:
    late: dict[str, float] = {}
    loop = asyncio.get_running_loop()
    deadlines: Deadlines[str] = Deadlines(LIMIT_S, lambda thing: late.setdefault(thing, loop.time()))
    deadlines.begin("first")
    half_s = loop.time() + LIMIT_S / 2
    await eventually(lambda: loop.time() > half_s, "half of the body has passed")
    began_s = loop.time()
    deadlines.begin("second")
    await eventually(lambda: len(late) == 2, "both are late")
    assert late["second"] >= began_s + LIMIT_S
    deadlines.begin("first")  # no deadline runs, and a new one can start
    await eventually(lambda: len(deadlines) == 0, "the deadline has expired once more")
