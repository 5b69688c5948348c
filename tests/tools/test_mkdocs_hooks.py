"""The handbook as a site: it builds without a warning, is complete, and loads nothing external."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.bootstrap import ROOT

LOADED = re.compile(
    r"""<(?:script|img|iframe)[^>]*\ssrc=["']?([^"' >]+)|<link[^>]*\shref=["']?([^"' >]+)[^>]*>"""
)
CODE = re.compile(r"<(pre|code)\b.*?</\1>", re.DOTALL)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_built_and_linked(site: Path) -> None:
    pages = {each.relative_to(ROOT / "docs").with_suffix(".html") for each in (ROOT / "docs").rglob("*.md")}
    text = (site / "index.html").read_text()
    assert {each for each in pages if not (site / each).is_file()} == set()
    assert {each for each in pages if f'href="{each}"' not in text} == set()


def test_site_loads_nothing_from_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = [first or second for first, second in LOADED.findall(CODE.sub("", page.read_text()))]
        assert [each for each in loaded if "://" in each or each.startswith("//")] == [], page


def test_links_out_of_the_handbook_become_names(site: Path) -> None:
    text = (site / "configuration.html").read_text()
    assert "<code>deploy/examples/fleet.yaml</code>" in text
    assert 'href="../' not in text
