"""fleet/control/status.py: the cost of a status that is built ten times a second."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from fleet.config.file import parse_text
from fleet.control import status
from fleet.control.status import StatusSource
from fleet.runtime.ephemeral_ports import EphemeralPorts
from fleet.tls import checking, issuing
from tests.unit.config.test_file import tree


def test_a_certificate_is_read_once_for_each_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issuing.make("demo", ["p1"], tmp_path, 30, datetime.now(UTC))
    read, look, path = [], checking.file_expiry, tmp_path / "ca.pem"

    def looking(at: Path) -> datetime | None:
        read.append(at)
        return look(at)

    monkeypatch.setattr(checking, "file_expiry", looking)
    upstream = SimpleNamespace(tls=SimpleNamespace(files={"ca": path, "key": tmp_path / "none"}))
    settings = SimpleNamespace(
        listener_tls={}, peer_tls=None, admin=SimpleNamespace(tls=None), upstream=upstream
    )
    source = StatusSource(cast(Any, SimpleNamespace(settings=settings, me="p1")))
    first = [source.certificate_expiry() for _ in range(3)]
    expires = look(path)
    assert expires is not None
    assert first == [{"upstream.tls.ca": expires.timestamp()}] * 3
    assert read == [path]

    path.write_bytes(path.read_bytes() + b"\n")
    assert source.certificate_expiry() == first[0]
    assert read == [path] * 2
    path.unlink()
    assert source.certificate_expiry() == {}


def test_ports_are_checked_again_after_a_kernel_change(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = parse_text(yaml.safe_dump(tree(1)), {}, "fleet.yaml", Path("/fleet"))
    control = SimpleNamespace(settings=settings, own_settings=settings.members["p1"], me="p1")
    source = StatusSource(cast(Any, control))
    checked: list[EphemeralPorts | None] = []

    def check(_: object, kernel: EphemeralPorts | None) -> None:
        checked.append(kernel)

    monkeypatch.setattr(status, "port_trouble", check)
    kernel: EphemeralPorts | None
    for kernel in (None, EphemeralPorts(9100, 9200), EphemeralPorts(9100, 9200), None):
        monkeypatch.setattr(status, "read_ephemeral_ports", lambda found=kernel: found)
        source.find_port_trouble()
    assert checked == [EphemeralPorts(9100, 9200), None]
