"""A game day that is interrupted, or cannot write its folder."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from fleet.core.errors import GameDayError
from fleet.drills.game_day import run
from fleet.drills.game_day.plan import Options


async def test_second_ctrl_c_waits_for_the_healing_after_the_first() -> None:
    said: list[str] = []

    async def hold() -> None:
        with run.heal_before_exit(said.append):
            try:
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(60.0)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.1)
                said.append("healed")

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(hold())
    assert said == ["healing the fault first", "healed"]


def test_client_histories_stay_in_the_given_folder(tmp_path: Path) -> None:
    with run.client_folder(Options("drain")) as temporary:
        assert temporary.is_dir()
    assert not temporary.exists()
    with run.client_folder(Options("drain", folder=tmp_path)) as kept:
        assert kept.parent == tmp_path
    assert kept.is_dir()
    file = tmp_path / "file"
    file.touch()
    with (
        pytest.raises(GameDayError, match="cannot create the folder: Not a directory"),
        run.client_folder(Options("drain", folder=file)),
    ):
        pass
