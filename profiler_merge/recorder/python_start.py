"""Code that every Python process of a job runs first, so that Ctrl-C leaves a log, and steps and requests are recorded.

Darshan writes its log when the C library ends the process. Since Python 3.8 an unhandled KeyboardInterrupt ends it by
the signal instead, and the log would be lost.
"""

from __future__ import annotations

import shutil
from pathlib import Path

FILE_NAME = "sitecustomize.py"
HOOKS = "dxt_replay_requests"
"""Name of `request_hooks` in the job."""

TEXT = '''\
"""Written by dxt-replay record: Darshan writes its log when Ctrl-C ends the program, and requests are recorded."""

import atexit
import importlib.util
import os
import sys


def _write_log():
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        try:
            import ctypes

            ctypes.CDLL(None).darshan_core_shutdown(1)
        except (ImportError, OSError, AttributeError):
            pass


if "libdarshan" in os.environ.get("LD_PRELOAD", ""):
    atexit.register(_write_log)


def _run_the_next():
    """The environment may have a sitecustomize of its own, which this file hides."""
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in sys.path:
        place = os.path.join(folder, "sitecustomize.py")
        if os.path.abspath(folder) != here and os.path.isfile(place):
            spec = importlib.util.spec_from_file_location("sitecustomize", place)
            module = importlib.util.module_from_spec(spec)
            sys.modules["sitecustomize"] = module
            spec.loader.exec_module(module)
            return


def _record_requests():
    try:
        from dxt_replay_requests.loading import install
    except ImportError:
        return
    install()


class _Marks:
    """Has the training marked, in a process that imports one of these: others pay for a look at each import."""

    def find_spec(self, name, path=None, target=None):
        if name not in ('torch', 'tensorflow', 'keras', 'grain'):
            return None
        sys.meta_path.remove(self)
        try:
            import dxt_replay_marks as marks
            marks.start()
        except Exception as error:  # the job matters, its marks do not
            print("dxt-replay: recording: no marks:", error, file=sys.stderr)
            return None
        return marks.hooked_spec(name)


if os.environ.get("DXT_RECORDING_PROFILE"):
    sys.meta_path.insert(0, _Marks())
_record_requests()
_run_the_next()
'''
"""A `sitecustomize` for the job; it needs only Python."""


def write_python_start(folder: Path) -> None:
    """Write the folder in which each Python of the job looks for modules first. Raises: OSError."""
    folder.mkdir()
    (folder / FILE_NAME).write_text(TEXT, encoding="utf-8")
    shutil.copyfile(Path(__file__).parents[1] / "recording.py", folder / "dxt_replay_marks.py")
    hooks = Path(__file__).parents[1] / "request_hooks"
    (folder / HOOKS).mkdir()
    for file in sorted(hooks.glob("*.py")):
        shutil.copyfile(file, folder / HOOKS / file.name)
