"""Parsing the output of perf and strace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.errors import BenchError
from benchmarks.profiled import KERNEL, OTHERS, counts, proxies, sampled, shares, switches
from benchmarks.tls import BOTH, CLIENT, SIDES

REPORT = """\
 54.87% ,[kernel.kallsyms]   
 38.55% ,libpython3.11.so.1.0
 5.40%  ,libc.so.6           
 0.69%  ,[vdso]              
 0.49%  ,libm.so.6

"""
SUMMARY = """\
calls     syscall
--------- ----------------
    44016 read
        7 epoll_wait
--------- ----------------
    44023 total
"""


def test_shares_are_by_library_and_small_shares_are_summed() -> None:
    found = shares(REPORT)
    assert list(found) == [KERNEL, "libpython3.11.so.1.0", "libc.so.6", OTHERS]
    assert list(found.values()) == pytest.approx([0.5487, 0.3855, 0.054, 0.0118])


def test_calls_are_counted_by_name_without_the_total() -> None:
    assert counts(SUMMARY) == {"read": 44016, "epoll_wait": 7}


def test_wait_counts_as_a_switch() -> None:
    before = switches([os.getpid()])
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
    assert switches([os.getpid()]).waits > before.waits


def test_ended_process_is_reported(tmp_path: Path) -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    with pytest.raises(BenchError, match="a proxy has ended"):
        switches([pid])
    with pytest.raises(BenchError, match="perf cannot watch"), sampled(tmp_path / "perf.data", [pid]):
        pytest.fail("the process has ended")


def test_tls_side_selects_its_peers(tmp_path: Path) -> None:
    assert proxies(None, None) == peers.load()
    assert tuple(peers.load_sides()) == SIDES
    for side in SIDES:
        assert proxies(None, side) == peers.load_sides()[side]
    own = tmp_path / "peers.yaml"
    own.write_text("client: {mine: {process: 1}}")
    assert list(proxies(own, CLIENT)) == ["mine"]
    with pytest.raises(BenchError, match=r"peers\.yaml: no peers below 'both', which --tls requires"):
        proxies(own, BOTH)
