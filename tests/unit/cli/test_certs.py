"""``fleet certs``, and what ``fleet check`` and ``fleet node`` make of certificates."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fleet import cli
from tests.unit.cli.test_commands import Out, run_json, stand_in
from tests.unit.config.test_file import tree


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump({**tree(), "peer_tls": {}}, sort_keys=False), encoding="utf-8")
    return path


@pytest.fixture
def folder(config: Path, capsys: Out) -> Path:
    """The files of `fleet certs init`, in the folder that the configuration names."""
    made = config.parent / "certs"
    assert cli.run(["certs", "init", "-c", str(config), "--out", str(made)]) == 0
    capsys.readouterr()
    return made


@pytest.mark.parametrize("command", ["init", "renew", "show"])
def test_help_of_each_command_has_json_and_an_example(command: str, capsys: Out) -> None:
    assert cli.run(["certs", command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "--json" in out
    assert f"  fleet certs {command}" in out


def test_init_prints_what_to_copy_where(config: Path, capsys: Out) -> None:
    out = config.parent / "made"
    code, printed = run_json(capsys, "certs", "init", "-c", str(config), "--out", str(out), "--days", "7")
    assert code == 0
    assert [each["proxy_id"] for each in printed["members"]] == ["p1", "p2", "p3"]
    assert printed["members"][0]["key"] == f"{out}/p1.key"
    steps = printed["next_steps"]
    configured = config.parent / "certs"
    assert steps[0].startswith(
        f"copy to the machine of p1: {out}/ca.pem, {out}/p1.crt, {out}/p1.key "
        f"(as {configured}/ca.pem, {configured}/p1.crt, {configured}/p1.key)"
    )
    assert steps[-1].startswith(f"keep {out}/ca-key.pem off these machines")
    assert not any("add `peer_tls:`" in step for step in steps)


def test_init_without_peer_tls_says_to_add_it(config: Path, capsys: Out) -> None:
    config.write_text(yaml.safe_dump(tree()), encoding="utf-8")
    assert cli.run(["certs", "init", "-c", str(config), "--out", str(config.parent / "certs")]) == 0
    out = capsys.readouterr().out
    assert "add `peer_tls:` to the configuration" in out
    assert f"copy to the machine of p3: {config.parent}/certs/ca.pem" in out
    code, printed = run_json(capsys, "certs", "show", "-c", str(config))
    assert (code, printed["error"]["kind"]) == (1, "certificates")
    assert "no section `peer_tls`" in printed["error"]["message"]


def test_init_overwrites_nothing(config: Path, folder: Path, capsys: Out) -> None:
    before = (folder / "p1.key").read_bytes()
    code, printed = run_json(capsys, "certs", "init", "-c", str(config), "--out", str(folder))
    assert (code, printed["error"]["kind"]) == (1, "certificates")
    assert (folder / "p1.key").read_bytes() == before


def test_renew_replaces_one_member_and_rejects_unknown_ones(config: Path, folder: Path, capsys: Out) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, printed = run_json(capsys, "certs", "renew", "p2", "-c", str(config), "--out", str(folder))
    assert (code, [each["proxy_id"] for each in printed["members"]]) == (0, ["p2"])
    changed = {path.name for path in folder.iterdir() if path.read_bytes() != before[path.name]}
    assert changed == {"p2.crt", "p2.key"}
    code, printed = run_json(capsys, "certs", "renew", "p9", "-c", str(config), "--out", str(folder))
    assert (code, printed["error"]["kind"]) == (2, "unknown_member")


def test_show_prints_expiries_and_missing_files(config: Path, folder: Path, capsys: Out) -> None:
    (folder / "p3.crt").unlink()
    code, printed = run_json(capsys, "certs", "show", "-c", str(config))
    assert (code, printed["next_steps"]) == (0, [])
    expires = {each["proxy_id"]: each["expires"] for each in printed["members"]}
    assert expires["p1"].endswith("Z")
    assert expires["p3"] is None
    assert cli.run(["certs", "show", "-c", str(config)]) == 0
    assert "not on this machine" in capsys.readouterr().out


def test_check_verifies_local_files_and_names_missing_ones(config: Path, folder: Path, capsys: Out) -> None:
    code, printed = run_json(capsys, "check", "-c", str(config))
    assert (code, [each for each in printed["warnings"] if "certificates" in each]) == (0, [])
    for name in ("p2.key", "p3.crt"):
        (folder / name).unlink()
    code, printed = run_json(capsys, "check", "-c", str(config))
    said = "the certificates of p2, p3 are not all on this machine, so they were not verified"
    assert (code, said in printed["warnings"]) == (0, True)
    (folder / "p3.key").write_text("no key, and nothing to p1")
    code, printed = run_json(capsys, "check", "-c", str(config), "--node", "p1")
    assert (code, [each for each in printed["warnings"] if "certificates" in each]) == (0, [])
    code, printed = run_json(capsys, "check", "-c", str(config), "--node", "p2")
    assert (code, printed["error"]["kind"]) == (2, "config")
    assert "p2.key: file not found" in printed["error"]["message"]
    assert run_json(capsys, "check", "-c", str(config), "--node", "p9")[0] == 2


def test_node_does_not_start_with_wrong_files(
    config: Path, folder: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def run(settings: object, proxy_id: str) -> int:
        started.append(proxy_id)
        return 0

    stand_in(monkeypatch, "fleet.runtime.supervisor", run=run)
    for name in ("p2.crt", "p2.key"):
        (folder / name).write_bytes((folder / name.replace("p2", "p3")).read_bytes())
    assert run_json(capsys, "node", "-c", str(config), "--node", "p1")[0] == 0
    code, printed = run_json(capsys, "node", "-c", str(config), "--node", "p2")
    assert (code, printed["error"]["kind"], started) == (2, "config", ["p1"])
    assert "must name fleet://demo/p2, but names fleet://demo/p3" in printed["error"]["message"]


def test_password_that_others_may_read_is_rejected(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def run(settings: object, proxy_id: str) -> int:
        started.append(proxy_id)
        return 0

    stand_in(monkeypatch, "fleet.runtime.supervisor", run=run)
    sasl = {"mechanism": "SCRAM-SHA-512", "username": "fleet", "password": {"file": "password"}}
    config, password = tmp_path / "fleet.yaml", tmp_path / "password"
    config.write_text(yaml.safe_dump({**tree(), "upstream": {"sasl": sasl}}), encoding="utf-8")
    code, printed = run_json(capsys, "check", "-c", str(config))
    said = f"{password}: not on this machine, so not verified"
    assert (code, said in printed["warnings"]) == (0, True)

    password.write_text("correct-horse")
    password.chmod(0o640)
    for command in (("check",), ("check", "--node", "p1"), ("node", "--node", "p1")):
        code, printed = run_json(capsys, *command, "-c", str(config))
        assert (code, printed["error"]["kind"]) == (2, "config")
        assert printed["error"]["message"].endswith(
            f"must be readable only by its owner; run `chmod 600 {password}`"
        )
        assert "correct-horse" not in str(printed)
    assert started == []

    password.chmod(0o600)
    assert run_json(capsys, "node", "-c", str(config), "--node", "p1")[0] == 0
    code, printed = run_json(capsys, "check", "-c", str(config), "--node", "p1")
    assert (code, started, "correct-horse" in str(printed)) == (0, ["p1"], False)
