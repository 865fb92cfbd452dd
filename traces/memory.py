"""How much memory this machine has left."""

from __future__ import annotations

from pathlib import Path


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Memory that a process can use without swapping, as Linux counts it; None where it does not tell."""
    try:
        for line in meminfo.read_text(encoding="ascii", errors="replace").splitlines():
            name, _, rest = line.partition(":")
            if name == "MemAvailable":
                return int(rest.split()[0]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return None
