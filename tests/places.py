"""Where the tests find the checkout, and the recorded data that lie beside it on some machines."""

import os
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
CAPTURES = SHARED / "captures"


def open_below(directory: Path) -> list[str]:
    """What this process has open below a directory, removed files too (Linux)."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(os.readlink(descriptor))
    return [name for name in found if name.startswith(f"{directory}/")]
