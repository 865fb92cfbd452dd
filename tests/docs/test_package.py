"""The description that a package index shows, the release's number, and what the source archive holds."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from dxt_replay.traces.version import VERSION
from tests.places import ROOT


@pytest.fixture(scope="module")
def description() -> str:
    """The long description as setup.py hands it to setuptools, first line the URL of the project."""
    code = """
import setuptools, sys
setuptools.setup = lambda **given: print(given["url"], given["long_description"], sep="\\n")
import Cython.Build
Cython.Build.cythonize = lambda *_, **__: []
exec(compile(open("setup.py").read(), "setup.py", "exec"), {"__file__": "setup.py", "__name__": "__main__"})
"""
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_links_of_the_description_are_absolute_and_lead_to_files_of_the_tree(description: str) -> None:
    home, _, text = description.partition("\n")
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(targets) == len(re.findall(r"\]\(([^)\s]+)\)", (ROOT / "README.md").read_text(encoding="utf-8")))
    ours = [target.removeprefix(f"{home}/blob/main/") for target in targets if target.startswith(home)]
    assert "docs/recording.md" in ours
    assert all((ROOT / target.partition("#")[0]).is_file() for target in ours)
    assert all(target.startswith("https://") for target in targets)


def test_the_citation_and_the_changelog_have_the_release(description: str) -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## (\S+)(?: \((\d{4}-\d\d-\d\d)\))?$", changelog, re.MULTILINE)
    assert [name for name, _ in releases] == ["Unreleased", VERSION, "0.1.0"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {VERSION}\n" in citation
    assert f"\ndate-released: {releases[1][1]}\n" in citation
    assert f"\nrepository-code: {description.partition(chr(10))[0]}\n" in citation
