"""The tutorials are what a reader gets who types them; and the runner that checks them finds differences."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.tutorial_runner import Typed, is_shown, run
from tests.places import ROOT

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("DXT_REPLAY_", "COLUMNS"))},
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "COLUMNS": "80",
}


TRACES = shutil.which("strace") is not None and not subprocess.run(["strace", "-o", os.devnull, "true"]).returncode
STRACE = pytest.mark.skipif(not TRACES, reason="needs strace, and the right to trace")
PYTORCH = pytest.mark.skipif(importlib.util.find_spec("torch") is None or not TRACES, reason="needs PyTorch and strace")
TUTORIALS = [
    "ten-minutes",
    pytest.param("your-own-job", marks=PYTORCH),
    pytest.param("two-file-systems", marks=STRACE),
    "what-if",
]


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_reader_sees_what_the_tutorial_shows(tmp_path: Path, name: str) -> None:
    differing = list(run(ROOT / "docs" / "tutorials" / f"{name}.md", tmp_path, ENVIRONMENT))
    assert not differing, "\n".join(f"$ {step.command}\n{step.expected}\n-- got:\n{got}" for step, got in differing)


@pytest.mark.parametrize(
    ("expected", "vary", "shown"),
    [
        ("read 3 files\n...", False, True),
        ("read 4 files\n...", False, False),
        ("read 4 files\n...", True, True),
        ("read ... files\nin 2 s", False, False),
        ("", False, False),
    ],
)
def test_an_output_differs_unless_the_page_says_so(expected: str, vary: bool, shown: bool) -> None:
    assert is_shown("read 3 files\nin 1.5 s\n", Typed("", expected, vary)) is shown


@pytest.mark.parametrize(
    ("fence", "differing"),
    [
        ("```console\n$ false\n```\n", 1),
        ("<!-- exits with 1 -->\n```console\n$ false\n```\n", 0),
        ("<!-- figures vary, exits with 1 -->\n```console\n$ echo 7; false\n8\n```\n", 0),
        ("```console\n$ echo 7\n8\n$ echo 9\n9\n```\n", 1),
        ("```python\n# a.py\nprint(1)\n```\n\n```console\n$ python3 a.py\n1\n```\n", 0),
    ],
)
def test_the_exit_status_counts(tmp_path: Path, fence: str, differing: int) -> None:
    (tmp_path / "page.md").write_text(fence, encoding="utf-8")
    assert len(list(run(tmp_path / "page.md", tmp_path, ENVIRONMENT))) == differing
