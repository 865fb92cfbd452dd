"""The public Python interface of dxt-replay: `import dxt_replay`. Everything else is private.

    import dxt_replay

    capture = dxt_replay.open_capture("run.capture")
    dxt_replay.table(capture, "steps")

`__init__.pyi` lists the names for type checkers and for Python. Each name is imported when it is first used. This
module imports only the standard library, because recorded jobs import it.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_HOME_OF = {
    name: f"{__name__}{module}"
    for module, names in re.findall(r"^from (\.[\w.]+) import (\([^)]*\)|.*)", _STUB, re.MULTILINE)  # ast costs 8 ms
    for name in re.findall(r"\w+", names)
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
