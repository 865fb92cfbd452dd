"""The public Python interface of dxt-replay: `import dxt_replay`. Everything else is private.

    import dxt_replay

    capture = dxt_replay.open_capture("run.capture")
    dxt_replay.table(capture, "steps")

`__init__.pyi` lists the names for type checkers and for Python. Each name is imported when it is first used. This
module imports only the standard library, because recorded jobs import it.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

_HOME_OF = {
    alias.name: f"{__name__}.{node.module}"
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
"""Public name -> the module that defines it."""

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
