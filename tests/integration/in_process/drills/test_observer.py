"""The observer's reports from members' admin addresses."""

from __future__ import annotations

from pathlib import Path

import yaml

from fleet.admin.server import serve
from fleet.config.file import load
from fleet.drills.workload.observer import Observer
from fleet.drills.workload.waiting import eventually
from tests.integration.in_process.admin.test_server import listening
from tests.unit.admin.sample_snapshot import Source
from tests.unit.config.test_file import tree


async def test_observer_records_generations_and_signs_of_life(tmp_path: Path) -> None:
    sock = listening()
    runner = await serve(Source(), sock)
    data = tree()
    data["members"]["p1"] |= {"witness": True, "listeners": {}}
    data["members"]["p1"]["admin"] = f"127.0.0.1:{sock.getsockname()[1]}"
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    observer = Observer(load(path, {}), frozenset({1, 2, 3}))
    try:
        async with observer.observing():
            assert await eventually(lambda: "p1" in observer.answers, 5.0)
    finally:
        await runner.cleanup()
    assert observer.views() == {"p2": [], "p3": []}
    (sighting,) = observer.sightings
    assert (sighting.proxy_id, sighting.generation, sighting.owners[2]) == ("p1", 7, ("p2",))
    assert observer.heard_s("p1") >= sighting.at_s > 0.0
    assert observer.heard_s("p2") == 0.0
