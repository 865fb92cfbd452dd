"""Numbers the paths in a trace, and selects the files of the job: neither devices nor the software itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase

from dxt_replay.traces.units import format_counted

NOT_KEPT = -1

_SYSTEM = re.compile(
    rb"/(bin|boot|dev(?!/shm/)|etc|lib|lib32|lib64|proc|sbin|sys|usr)(/|\Z)"
    rb"|/var/(cache|db|lib|lock|log|mail|run|spool)(/|\Z)|/opt/(.*/)?(bin|etc|include|lib|lib64|libexec|share)(/|\Z)"
)
"""Folders of the system, and of programs below /opt. Anything else there (/opt/data, /var/tmp, /dev/shm) is data."""
_NO_FILE = re.compile(rb"/(dev|proc)/(?!shm/(?!(sem\.[^/]*|torch_\d+_\d+_\d+|psm_[0-9a-f]+)\Z))")
"""Devices, kernel files, named semaphores (sem_overview(7)), and what PyTorch's DataLoader and multiprocessing hand
from process to process in shared memory."""
_SOFTWARE = re.compile(
    rb"\.(py|pyc|pyi|pyd|so|egg-link)\Z|\.so\.[\d.]+\Z|/(site|dist)-packages(/|\Z)|/lib/python\d[\d.]*(/|\Z)"
    rb"|/__pycache__(/|\Z)|/pyvenv\.cfg\Z|\.(dist|egg)-info/[^/]+\Z"
)


class PathNumbers:
    """Numbers paths in order of appearance; NOT_KEPT for a path outside of the job, or one that a glob of `exclude`
    matches.

    Files of the system and of programs that match a glob of `include` are files of the job.
    paths: by number. dropped: calls on files that are not kept, by reason.
    """

    def __init__(self, exclude: Sequence[str] = (), include: Sequence[str] = ()) -> None:
        self.paths: list[bytes] = []
        self.dropped: Counter[str] = Counter()
        self._exclude, self._include = tuple(exclude), tuple(include)
        self._numbers: dict[bytes, int] = {}
        self._reasons: dict[bytes, str] = {}

    def number(self, path: bytes) -> int:
        """The number of an absolute path, NOT_KEPT for one that is left out."""
        known = self._numbers.get(path)
        if known is None:
            known = self._add(path)
        if known == NOT_KEPT and path in self._reasons:
            self.dropped[self._reasons[path]] += 1
        return known

    def _add(self, path: bytes) -> int:
        number, text = NOT_KEPT, path.decode("utf-8", "backslashreplace")
        included = any(fnmatchcase(text, glob) for glob in self._include)
        if not path.startswith(b"/") or path.startswith((b"/memfd:", b"/anon_hugepage")):
            pass  # a pipe, a socket, memory: not a file
        elif not included and _NO_FILE.match(path):
            pass
        elif not included and _SYSTEM.match(path):
            self._reasons[path] = "system"
        elif not included and _SOFTWARE.search(path):
            self._reasons[path] = "software"
        elif not any(fnmatchcase(text, glob) for glob in self._exclude):
            number = len(self.paths)
            self.paths.append(path)
        self._numbers[path] = number
        return number

    def folders(self) -> frozenset[int]:
        """The numbers of paths that are folders of others."""
        parents: set[bytes] = set()
        for path in self.paths:
            folder = path.rpartition(b"/")[0]
            while folder and folder not in parents:
                parents.add(folder)
                folder = folder.rpartition(b"/")[0]
        return frozenset(number for number, path in enumerate(self.paths) if path in parents)

    def warnings(self) -> list[str]:
        """Warnings about files that were left out."""
        said = [
            (self.dropped["system"], "files of the system (/usr, /etc, /var/lib and their like)"),
            (self.dropped["software"], "Python code and libraries"),
        ]
        parts = [f"{format_counted(calls, 'operation')} on {what}" for calls, what in said if calls]
        left_out = f"operations that load programs are left out: {'; '.join(parts)}"
        return [f"{left_out} (record --include DIR keeps files)"] if parts else []
