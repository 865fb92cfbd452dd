"""Which `traces`, `replay` and `profiler_merge` Python finds: PyPI has other packages of the first two names.

Standard library only, and nothing of the project: it runs before any of its packages is imported.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

OWN = ("traces", "replay", "profiler_merge")
"""The packages that are installed beside `dxt_replay`."""

MARK = "dxt-replay"
"""Stands in the docstring of each package of OWN, so that one that was overwritten in place is noticed."""


class ForeignPackageError(ImportError):
    """Python finds another project's package where dxt-replay needs its own."""


def check_packages() -> None:
    """Raises: ForeignPackageError when a package of OWN is missing or belongs to another project."""
    folder = Path(__file__).resolve().parent
    root = folder.parent.parent if folder.name == "interface" else folder.parent
    for name in OWN:
        wanted = root / name / "__init__.py"
        found = _location(name)
        if found is None:
            raise ForeignPackageError(f"dxt-replay's package {name} is not installed beside {folder}: install it again")
        if found != wanted or MARK not in wanted.read_text(encoding="utf-8"):
            raise ForeignPackageError(
                f"Python finds another project's package {name!r} ({found}) where dxt-replay needs its own: install "
                "dxt-replay in a virtual environment of its own, and take the other package's folder off PYTHONPATH"
            )


def _location(name: str) -> Path | None:
    """Where `import name` would read from, or has read from."""
    if name in sys.modules:
        origin = getattr(sys.modules[name], "__file__", None)
    else:
        spec = find_spec(name)
        origin = None if spec is None else spec.origin
    return None if origin is None else Path(origin).resolve()
