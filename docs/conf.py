"""The site, built by Sphinx from the Markdown of this folder: `make docs`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from reference import generated  # noqa: E402


def _value(file: str, pattern: str) -> str:
    found = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), re.M)
    assert found is not None, f"{file} has no {pattern}"
    return found[1]


HOME = _value("CITATION.cff", r"^repository-code: (\S+)$")
project = "dxt-replay"
author = _value("setup.cfg", r"^author = (.+)$")
release = version = _value("traces/version.py", r'^VERSION = "(.+)"$')
extensions = ["myst_parser", "sphinx_external_toc", "sphinx_copybutton"]
exclude_patterns = ["_build"]
nitpicky = True
smartquotes = False  # options begin with --
myst_heading_anchors = 4
highlight_language = "none"  # most blocks are commands and what they print
html_theme = "furo"
html_title = f"dxt-replay {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
man_pages = [("commands", project, _value("setup.cfg", r"^description = (.+)$"), author, 1)]
copybutton_prompt_text = "$ "


def complete(app: Sphinx, name: str, source: list[str]) -> None:
    """Add what the code describes, and lead links to files above this folder, which are no pages, to the repository."""
    source[0] += generated(name)
    source[0] = re.sub(
        r"\]\((?:\.\./)+(?=(?:[A-Z]\w*|(?:packaging|benchmarks)/\w*)\b)", f"]({HOME}/blob/main/", source[0]
    )


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", complete)
