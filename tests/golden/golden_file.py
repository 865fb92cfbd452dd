"""A text and the file that holds what it must be. After a wanted change: run with GOLDEN=write in the environment."""

from __future__ import annotations

import os
from pathlib import Path

EXPECTED = Path(__file__).parent / "expected"


def check_golden(name: str, text: str) -> None:
    """`text` is that of the golden file `name`; with GOLDEN=write it is written there first."""
    expected = EXPECTED / f"{name}.txt"
    if os.environ.get("GOLDEN") == "write":
        expected.write_text(text, encoding="utf-8")
    assert text == expected.read_text(encoding="utf-8")
