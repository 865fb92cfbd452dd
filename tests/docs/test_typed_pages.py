"""Pages with commands are what a reader gets who types them. What a fence of such a page means:

    ```python            a first line `# NAME.py` makes the rest the file NAME.py
    ```console           `$ COMMAND` is typed, continued by lines `> ...`; the lines up to the next `$` are its output

`...` stands for any text, on a line of its own for any lines. After `<!-- figures vary -->` in the line
before a fence each number of the output may be any other.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import ROOT

FENCE = re.compile(r"^(<!-- figures vary -->\n)?```(console|python)\n(.*?)^```$", re.M | re.S)
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("DXT_REPLAY_", "COLUMNS"))},
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "COLUMNS": "80",
}
TRACES = shutil.which("strace") is not None and not subprocess.run(["strace", "-o", os.devnull, "true"]).returncode
STRACE = pytest.mark.skipif(not TRACES, reason="needs strace, and the right to trace")
PYTORCH = pytest.mark.skipif(importlib.util.find_spec("torch") is None or not TRACES, reason="needs PyTorch and strace")


def is_shown(actual: str, expected: str, vary: bool) -> bool:
    """Whether the output is the one that the page shows."""

    def plain(text: str) -> str:
        text = "\n".join(re.sub(r"\s+", " ", line).strip() for line in text.strip("\n").split("\n"))
        return re.sub(r"\d[\d,]*(\.\d+)?", "0", text) if vary else text

    pattern = re.escape(re.sub(r"^\.\.\.$", "\0", plain(expected), flags=re.M).replace("...", "\0"))
    return re.fullmatch(pattern.replace("\0", ".*"), plain(actual), re.S) is not None


def differing(page: str, folder: Path) -> Iterator[str]:
    """Type a page in a folder: each command that fails, or prints otherwise than the page says."""
    for vary, kind, text in FENCE.findall(page):
        if kind == "python":
            first, _, rest = text.partition("\n")
            if (name := re.fullmatch(r"# (\w+\.py)", first)) is not None:
                (folder / name[1]).write_text(rest, encoding="utf-8")
            continue
        for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
            command, lines = part.split("\n", 1)
            while lines.startswith("> "):
                more, lines = lines[2:].split("\n", 1)
                command += "\n" + more
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=folder,
                env=ENVIRONMENT,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            if done.returncode or not is_shown(done.stdout, lines, bool(vary)):
                yield f"$ {command}\n{lines}\n-- got:\n{done.stdout}(exit status {done.returncode})"


@pytest.mark.parametrize(
    "name",
    [
        "ten-minutes",
        pytest.param("slow-training", marks=PYTORCH),
        pytest.param("regression", marks=STRACE),
        "capacity",
    ],
)
def test_a_reader_sees_what_the_page_shows(tmp_path: Path, name: str) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert not "\n".join(differing(page, tmp_path))


@pytest.mark.parametrize(
    ("page", "wrong"),
    [
        ("```console\n$ false\n```\n", 1),
        ("```console\n$ echo 7\n7\n$ echo 9\n8\n```\n", 1),
        ("<!-- figures vary -->\n```console\n$ echo 7 of 3; echo in 2 s\n8 of 1\n...\n```\n", 0),
        ("```console\n$ echo 7 of 3\n7 of ... files\n```\n", 1),
        ("```console\n$ echo more\n```\n", 1),
        ("```python\n# a.py\nprint(1)\n```\n\n```console\n$ python3 a.py\n1\n```\n", 0),
        ("```console\n$ cat <<END\n> two\n> END\ntwo\n```\n", 0),
    ],
)
def test_a_difference_is_seen_unless_the_page_allows_it(tmp_path: Path, page: str, wrong: int) -> None:
    assert len(list(differing(page, tmp_path))) == wrong


def test_the_example_is_short_uses_the_public_interface_alone_and_runs(tmp_path: Path) -> None:
    example = ROOT / "docs" / "example_notebook.py"
    lines = example.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 40
    assert {line.split()[1].split(".")[0] for line in lines if line.startswith(("import ", "from "))} == {
        "tempfile",
        "dxt_replay",
    }
    (tmp_path / "dxt_replay").symlink_to(ROOT / "src" / "dxt_replay")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, str(example)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for said in ("2 ranks, 700 operations", "580 reads of 131 MB", "staged 8 files", "the same operations: True"):
        assert said in done.stdout
