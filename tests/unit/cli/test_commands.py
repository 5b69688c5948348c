"""fleet/cli: output and exit codes of the commands."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
import yaml
from rich.console import Console

from fleet import cli
from fleet.admin import status
from fleet.admin.documents import OwnershipDocument
from fleet.admin.ownership import ownership_document
from fleet.admin.snapshot import RaftView
from fleet.cli import node as cli_member
from fleet.cli.render.tables import print_plan
from fleet.config.file import load
from fleet.core import errors
from fleet.core.errors import AdminError, FleetError, UnknownMember
from fleet.core.weights import Weights
from fleet.runtime.ephemeral_ports import EphemeralPorts
from tests.integration.in_process.tls import test_admin as admin_tls
from tests.unit.admin.sample_snapshot import view
from tests.unit.config.test_file import tree

ROOT = Path(__file__).resolve().parents[3]
ERRORS = sorted(FleetError.__subclasses__(), key=lambda each: each.__name__)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(tree(), sort_keys=False), encoding="utf-8")
    return path


Out = pytest.CaptureFixture[str]


def run_json(capsys: Out, *arguments: str) -> tuple[int, Any]:
    """Run a command with --json, which must print nothing on standard error. Returns: exit code, object."""
    code = cli.run([*arguments, "--json"])
    out = capsys.readouterr()
    assert out.err == ""
    return code, json.loads(out.out)


def test_check_prints_what_the_fleet_tolerates(config: Path, capsys: Out) -> None:
    code, printed = run_json(capsys, "check", "-c", str(config))
    assert code == 0
    assert printed["voters"] == ["p1", "p2", "p3"]
    assert "any 1 voter may die and ownership can still be committed" in printed["tolerates"]
    assert cli.run(["check", "-c", str(config)]) == 0
    out = capsys.readouterr().out
    assert "no mistakes" in out
    assert "external 127.0.0.1:9100" in out
    assert "any 1 voter may die" in out


def test_check_rejects_a_data_directory_that_others_may_write(config: Path, capsys: Out) -> None:
    """``mkdir`` with umask 002 creates such a directory; the member does not start with it."""
    folder = load(str(config), {}).member("p1").data_dir
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    assert cli.run(["check", "-c", str(config)]) == 0
    folder.chmod(0o775)
    capsys.readouterr()
    for node in ([], ["--node", "p1"]):
        assert cli.run(["check", "-c", str(config), *node]) == 1
        assert f"members.p1.data_dir: {folder} has mode 0775" in capsys.readouterr().err
    assert cli.run(["check", "-c", str(config), "--node", "p2"]) == 0


def test_check_prints_every_mistake(config: Path, capsys: Out) -> None:
    config.write_text("fleet: 1\n", encoding="utf-8")
    code, printed = run_json(capsys, "check", "-c", str(config))
    assert (code, printed["error"]["kind"]) == (2, "config")
    assert cli.run(["check", "-c", str(config)]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert f"{config}:1: fleet: 1: must be text" in out.err
    assert "members: is required" in out.err


def test_environment_variables_replace_options(
    config: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_CONFIG", str(config))
    assert run_json(capsys, "check")[1]["source"] == str(config)
    monkeypatch.setenv("FLEET_NODE", "p9")
    code, printed = run_json(capsys, "node")
    assert (code, printed["error"]["kind"]) == (2, "unknown_member")


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **content: object) -> None:
    module = ModuleType(name)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)


def test_node_exits_with_the_code_of_the_supervisor(
    config: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[object, str]] = []

    def run(settings: object, proxy_id: str) -> int:
        seen.append((settings, proxy_id))
        return 143

    stand_in(monkeypatch, "fleet.runtime.supervisor", run=run)
    code, printed = run_json(capsys, "node", "-c", str(config), "--node", "p2")
    assert (code, printed) == (143, {"proxy_id": "p2", "exit_code": 143})
    assert [proxy_id for _, proxy_id in seen] == ["p2"]


def test_node_prints_why_it_cannot_start(config: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(settings: object, proxy_id: str) -> int:
        raise errors.StartError("port 9100 is in use")

    stand_in(monkeypatch, "fleet.runtime.supervisor", run=run)
    code, printed = run_json(capsys, "node", "-c", str(config), "--node", "p2")
    assert (code, printed["error"]) == (1, {"kind": "start", "message": "port 9100 is in use"})


@pytest.mark.parametrize("broker_id", ["x", "-1", "2147483648"])
def test_pin_of_an_impossible_broker_id_is_a_usage_error(broker_id: str, capsys: Out) -> None:
    code, printed = run_json(capsys, "unpin", "--admin", "127.0.0.1:1", "--", broker_id)
    assert (code, printed["error"]["kind"]) == (2, "usage")
    assert "BROKER" in printed["error"]["message"]


def test_drain_of_an_unknown_member_exits_with_2(config: Path, capsys: Out) -> None:
    code, printed = run_json(capsys, "drain", "p9", "-c", str(config))
    assert (code, printed["error"]["kind"]) == (2, "unknown_member")


def test_plan_avoids_members_that_cannot_reach_the_broker() -> None:
    answer = ownership_document(view(upstream_up={2: False}, me="p1"))
    plan = status.plan({"p1": answer}, ("p2",))
    assert [(move.broker_id, move.after) for move in plan.moves if move.broker_id == 2] == [(2, ("p3",))]


def test_plan_by_weight_moves_load_to_the_lightest_member() -> None:
    answer = ownership_document(view(me="p1"))
    weighing = Weights({1: 100.0, 2: 1.0, 3: 1.0})
    plan = status.plan({"p1": answer}, (), weighing)
    assert plan.weighed
    before, after = ([getattr(each, f"weight_{when}") for each in plan.loads] for when in ("before", "after"))
    assert sum(before) == sum(after) == sum(weighing.weights.values())
    assert max(after) < max(before)
    assert plan.moves


def test_fleet_balanced_by_weight_has_no_move_by_number() -> None:
    """Otherwise a rolling restart waits for that move for ever."""
    answer = ownership_document(view(me="p1", upstream_up={}))
    identities = (replace(each, committed=("p1",), pinned_to=None) for each in answer.identities)
    answer = replace(answer, identities=tuple(identities))
    by_number, by_weight = (
        status.plan({"p1": replace(answer, balanced_by=by)}, ()).moves for by in ("identities", "weights")
    )
    assert not all(set(move.before) <= set(move.after) for move in by_number)
    # A member without brokers becomes an additional owner, whatever the weights are.
    assert all(set(move.before) <= set(move.after) for move in by_weight)


def test_title_of_a_plan_keeps_the_case_of_names(capsys: Out) -> None:
    """The capital letter at the start of the title made all other letters small."""
    answer = ownership_document(view(me="p1"))
    document = replace(status.plan({"p1": answer}, ("p2",)), without=("Proxy-B",))
    print_plan(document, Console(width=200))
    assert "Without Proxy-B," in capsys.readouterr().out


@pytest.mark.parametrize("more", [("--from", "2026-11-02", "--to", "2026-11-01"), ()])
def test_report_rejects_a_wrong_interval_or_folder_at_once(
    tmp_path: Path, capsys: Out, more: tuple[str, ...]
) -> None:
    """The command fails before it starts Spark."""
    page = tmp_path / "none" / "report.html"
    code, printed = run_json(capsys, "report", "--tables", str(tmp_path), "--out", str(page), *more)
    assert code == (2 if more else 1)
    assert printed["error"]["message"].startswith("--from" if more else f"{page}: there is no folder")


def test_best_answer_has_a_quorum_and_the_newest_generation() -> None:
    lost = replace(
        ownership_document(view(raft=RaftView(quorum_lost_mono_s=1.0))), generation=99, proxy_id="p1"
    )
    old = replace(ownership_document(view()), generation=7, proxy_id="p2")
    new = replace(old, generation=8, proxy_id="p3")
    answers: dict[str, OwnershipDocument | FleetError] = {
        "p1": lost,
        "p2": old,
        "p3": new,
        "p4": AdminError("gone"),
    }
    assert status.best_answer(answers).proxy_id == "p3"
    summary = status.fleet_status(answers, dict.fromkeys(answers, "http://somewhere"))
    assert (summary.agree, summary.reported_by) == (False, "p3")
    with pytest.raises(AdminError, match="no member answered: gone"):
        status.best_answer({"p4": AdminError("gone")})
    with pytest.raises(UnknownMember):
        status.plan(answers, ("px",))


def test_usage_errors_exit_with_2(capsys: Out) -> None:
    code, printed = run_json(capsys, "stauts")
    assert (code, printed["error"]["kind"]) == (2, "usage")
    assert cli.run(["plan"]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert "give --without ID, or --weights (see fleet plan --help)" in out.err


def test_help_lists_every_command_with_an_example(capsys: Out) -> None:
    assert cli.run(["--help"]) == 0
    out = capsys.readouterr().out
    for name in (
        "node",
        "check",
        "certs",
        "status",
        "drain",
        "undrain",
        "pin",
        "unpin",
        "plan",
        "pipeline",
        "demo",
    ):
        assert f"\n  {name} " in out
        assert f"fleet {name}" in out
    assert "3    no member answered, or there is no quorum" in out


@pytest.mark.parametrize(
    "command", sorted(name for name, each in cli.cli.commands.items() if name != "demo" and not each.hidden)
)
def test_help_of_each_command_has_json_and_an_example(command: str, capsys: Out) -> None:
    assert cli.run([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "--json" in out
    assert f"  fleet {command} " in out


def all_commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """All visible commands with their command lines. The help of `fleet demo` is in the drills."""
    for name, command in group.commands.items():
        if command.hidden or name == "demo":
            continue
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from all_commands(command, f"{path} {name}")


@pytest.mark.parametrize(("path", "command"), list(all_commands(cli.cli, "fleet")))
def test_help_describes_each_command_and_option(path: str, command: click.Command) -> None:
    assert (command.help or "").partition("\n\n")[0].strip().endswith((".", ":")), path
    assert command.get_short_help_str(100).endswith("."), path
    assert f"\n  {path} " in (command.epilog or "")
    for option in command.params:
        if isinstance(option, click.Option):
            assert re.search(r"\.(  \[default: .*\])?$", option.help or ""), (
                f"{path} {option.opts}: {option.help}"
            )
            if (option.name or "").endswith("_s") and option.name != "rate_per_s":
                assert option.metavar == "SECONDS", f"{path} {option.opts}"


def test_misspelt_command_gets_a_suggestion(capsys: Out) -> None:
    """Click did not know the names of commands that are imported when they are used."""
    code, printed = run_json(capsys, "statsu")
    assert (code, printed["error"]["kind"]) == (2, "usage")
    assert "Did you mean 'status'?" in printed["error"]["message"]


def test_demo_passes_arguments_and_exit_code_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    @click.command()
    @click.option("--rounds", type=int)
    @click.option("--json", "as_json", is_flag=True)
    def command(rounds: int, as_json: bool) -> int:
        seen.append((rounds, as_json))
        return 1

    stand_in(monkeypatch, "fleet.drills.demo.command", command=command)
    assert cli.run(["demo", "--rounds", "3", "--json"]) == 1
    assert seen == [(3, True)]


def test_demo_names_a_missing_package(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'confluent_kafka'", name="confluent_kafka")

    monkeypatch.setattr(importlib, "import_module", missing)
    code, printed = run_json(capsys, "demo")
    assert (code, printed["error"]["kind"]) == (1, "demo")
    assert "pip install 'kafka-proxy-fleet[demo]'" in printed["error"]["message"]


@pytest.mark.parametrize("error", ERRORS)
def test_each_error_has_a_kind_and_an_exit_code(
    error: type[FleetError], config: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_connections = issubclass(error, (errors.WireError, errors.LimitExceeded))
    raised = error("client", "x") if of_connections else error("x")

    def run(settings: object, proxy_id: str) -> int:
        raise raised

    stand_in(monkeypatch, "fleet.runtime.supervisor", run=run)
    code, printed = run_json(capsys, "node", "-c", str(config), "--node", "p1")
    assert code in (1, 2, 3)
    assert "x" in printed["error"]["message"]


def test_ctrl_c_exits_with_130(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(settings: object, proxy_id: str) -> int:
        raise KeyboardInterrupt

    stand_in(monkeypatch, "fleet.runtime.supervisor", run=run)
    assert cli.run(["node", "-c", str(config), "--node", "p1"]) == 130


def test_process_exits_and_needs_no_package_of_the_demo(config: Path) -> None:
    """Runs ``python -m fleet``, with the packages of the demo blocked."""
    blocked = "import sys; sys.modules.update(confluent_kafka=None, psutil=None); sys.argv[0] = 'fleet'; "
    program = blocked + "from fleet.cli import main; main()"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}

    def exit_code(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, env=environ, check=False, timeout=60)

    helped = exit_code(sys.executable, "-c", program, "--help")
    assert (helped.returncode, "demo" in helped.stdout) == (0, True)
    checked = exit_code(sys.executable, "-m", "fleet", "check", "-c", str(config), "--json")
    assert (checked.returncode, json.loads(checked.stdout)["fleet"]) == (0, "demo")
    wrong = exit_code(sys.executable, "-m", "fleet", "check", "-c", str(config.parent / "none.yaml"))
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "file not found" in wrong.stderr


def test_durations_are_readable() -> None:
    from fleet.cli.render.tables import duration

    assert [duration(each) for each in (0.0, 4.25, 75.0, 7200.0)] == [
        "0.0 s",
        "4.2 s",
        "1 min 15 s",
        "2 h 0 min",
    ]


def secured(folder: Path, port: int = 7201) -> Path:
    """A configuration whose admin addresses require tokens and TLS, with all its files."""
    return Path(admin_tls.secured(folder, port).source)


def test_check_reads_tokens_but_does_not_print_them(tmp_path: Path, capsys: Out) -> None:
    config = secured(tmp_path)
    for arguments in ((), ("--node", "p1"), ("--json",), ("--node", "p1", "--json")):
        assert cli.run(["check", "-c", str(config), *arguments]) == 0
        out = capsys.readouterr()
        assert not any(token in out.out + out.err for token in (admin_tls.READ, admin_tls.WRITE))
    (tmp_path / "certs" / "p2.key").unlink()
    (tmp_path / "write-token").unlink()
    warnings = run_json(capsys, "check", "-c", str(config))[1]["warnings"]
    assert warnings[-2:] == [
        "the certificates of p2 are not all on this machine, so they were not verified",
        "admin.tokens: not on this machine, so not verified",
    ]


@pytest.mark.parametrize("command", ["check", "node"])
def test_tokens_and_certificates_are_checked_before_the_start(
    command: str, tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(settings: object, proxy_id: str) -> int:
        raise AssertionError("the member has been started")

    stand_in(monkeypatch, "fleet.runtime.supervisor", run=run)
    config = secured(tmp_path)
    (tmp_path / "read-token").chmod(0o644)
    code, printed = run_json(capsys, command, "-c", str(config), "--node", "p1")
    assert (code, printed["error"]["kind"]) == (2, "config")
    assert "must be readable only by its owner; run `chmod 600" in printed["error"]["message"]
    assert admin_tls.READ not in printed["error"]["message"]
    (tmp_path / "read-token").chmod(0o600)
    (tmp_path / "certs" / "p1.key").unlink()
    code, printed = run_json(capsys, command, "-c", str(config), "--node", "p1")
    assert (code, "p1.key: file not found" in printed["error"]["message"]) == (2, True)


@pytest.mark.parametrize("command", ["check", "node"])
@pytest.mark.parametrize("package", ["opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter"])
def test_tracing_packages_are_checked_before_the_start(
    command: str, package: str, tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def run(settings: object, proxy_id: str) -> int:
        started.append(proxy_id)
        return 0

    stand_in(monkeypatch, "fleet.runtime.supervisor", run=run)
    stand_in(monkeypatch, "fleet.runtime.stderr_log", log_to_stderr=lambda _: None)
    config = tmp_path / "fleet.yaml"
    headers = {"Authorization": {"file": "token"}}
    tracing = {"tracing": {"endpoint": "http://127.0.0.1:4318", "headers": headers}}
    config.write_text(yaml.safe_dump({**tree(), **tracing}, sort_keys=False))
    code, printed = run_json(capsys, command, "-c", str(config), "--node", "p1")
    assert code == 2
    assert "tracing.headers.Authorization" in printed["error"]["message"]
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text("hidden")
    assert run_json(capsys, command, "-c", str(config), "--node", "p1")[0] == 0
    assert started == ["p1"] * (command == "node")

    for name in [each for each in sys.modules if each.split(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    code, printed = run_json(capsys, command, "-c", str(config), "--node", "p1")
    assert (code, printed["error"]["kind"]) == (2, "config")
    assert re.match(
        rf"{config}:\d+: tracing: needs packages that are not installed", printed["error"]["message"]
    )
    assert "; pip install 'kafka-proxy-fleet[otel]'" in printed["error"]["message"]
    assert started == ["p1"] * (command == "node")


def test_check_names_what_tracing_lacks_on_this_machine(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "fleet.yaml"
    headers = {"Authorization": {"file": "token"}}
    tracing = {"tracing": {"endpoint": "http://127.0.0.1:4318", "headers": headers}}
    config.write_text(yaml.safe_dump({**tree(), **tracing}, sort_keys=False))
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    assert run_json(capsys, "check", "-c", str(config))[1]["warnings"] == [
        "packages of tracing (opentelemetry.sdk), tracing.headers.Authorization: "
        "not on this machine, so not verified"
    ]


@pytest.mark.parametrize("node", [(), ("--node", "p1")])
def test_check_warns_of_ports_that_the_kernel_may_give_away(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch, node: tuple[str, ...]
) -> None:
    config = tmp_path / "fleet.yaml"
    config.write_text(yaml.safe_dump(tree()))
    kernel = EphemeralPorts(9101, 9110, ((9105, 9105),))
    monkeypatch.setattr(cli_member, "read_ephemeral_ports", lambda: kernel)
    code, printed = run_json(capsys, "check", "-c", str(config), *node)
    assert code == 0, "a warning is no mistake"
    (said,) = printed["warnings"]
    ports = "9101-9104, 9106-9110"
    by = "members.p1: on this machine,"
    assert said.startswith(f"{by} ports {ports} are in the range of outgoing connections, 9101-9110 (")
    assert "net.ipv4.ip_local_reserved_ports=9101-9110, and" in said
    assert cli.run(["check", "-c", str(config), *node]) == 0
    assert f"warning: {by} ports {ports} are" in capsys.readouterr().out
    monkeypatch.setattr(cli_member, "read_ephemeral_ports", lambda: None)
    assert run_json(capsys, "check", "-c", str(config), *node)[1]["warnings"] == []
