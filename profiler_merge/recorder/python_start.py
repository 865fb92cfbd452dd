"""Code that every Python process of a job runs first, so that Ctrl-C leaves a log.

Darshan writes its log when the C library ends the process. Since Python 3.8 an unhandled KeyboardInterrupt ends it by
the signal instead, and the log would be lost.
"""

FILE_NAME = "sitecustomize.py"

TEXT = '''\
"""Written by dxt-replay record: lets Darshan write its log when Ctrl-C ends a Python program."""

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


_run_the_next()
'''
"""A `sitecustomize` for the job; it needs only Python."""
