"""How much memory this machine has left, and what the C library does with freed memory."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of mallopt(3)."""


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


def keep_freed_memory() -> None:
    """Let the C library (glibc) keep up to 256 MiB of freed memory for the next arrays: the system clears each page
    that it gets back, which took a tenth of the time of a merge."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, 32 << 20)
        library.mallopt(_TRIM_THRESHOLD, 256 << 20)


def return_freed_memory() -> None:
    """Return freed memory to the system if the C library keeps it (glibc)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
