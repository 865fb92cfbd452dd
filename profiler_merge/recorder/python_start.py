"""Code that every Python process of a job runs first: Ctrl-C leaves a log, steps and requests are recorded, what Python
reads of its own is counted, and programs that it starts get as much of Darshan's memory as they need.

Darshan writes its log when the C library ends the process. Since Python 3.8 an unhandled KeyboardInterrupt ends it by
the signal instead, and the log would be lost.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from dxt_replay.profiler_merge.recorder.darshan import EXCLUDED_ROOTS, SHARED_MEMORY, STARTERS

_TEXT = '''\
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


class _Count:
    """Counts the bytes that this process reads of files that no tracer shows, in a file that outlives it: what it read
    to start, and each module. A mapping, since a program may close all descriptors, and have another file there."""

    def __init__(self):
        self.place, self.kept = None, []
        with open("/proc/self/io") as io:
            self.total = int(io.readline().split()[1])
        self.note()
        os.register_at_fork(after_in_child=self.forked)

    def forked(self):
        self.kept.append(self.place)  # to free it would close a descriptor, whose number may be another file's by now
        self.place, self.total = None, 0

    def note(self):
        if self.place is None:
            name = "%s/%d.%d.not_data" % (os.environ["DXT_RECORDING_PROFILE"], os.getpid(), time.monotonic_ns())
            with open(name, "xb+", buffering=0) as file:
                file.write(bytes(8))
                self.place = mmap.mmap(file.fileno(), 8)
        self.place[:] = self.total.to_bytes(8, "little")

    def event(self, name, arguments):
        if name != "open":
            return
        try:
            path = os.fsdecode(arguments[0])
            own = path.endswith((".py", ".pyc")) or "/site-packages/" in path or "/lib/python" in path
            if own or path.startswith(SYSTEM) and not path.startswith(DATA) and not _looking:
                size = os.stat(path).st_size
                self.total += size if own else min(size, 1 << 20)  # a part may be read
                self.note()
        except Exception:  # a descriptor, a file that does not exist, a full disk
            pass


_looking = []


def _small(words, executables, environment):
    """The environment (name=value) of a program that Python starts, with the small configuration if it is no Python and
    seems to start none: neither a script, nor a shell or another starter whose words name one."""
    for program in map(os.fsencode, executables):
        _looking.append(program)
        try:
            with open(program, "rb", buffering=0) as file:
                is_binary = file.read(4) == b"\x7fELF"
        except OSError:
            continue
        finally:
            _looking.clear()
        name = os.path.basename(os.path.realpath(program)).decode("utf-8", "replace")
        may_start = name in STARTERS and any(each in b" ".join(words) for each in (b"py", b"run", b"launch", b".sh"))
        if is_binary and not name.startswith(("python", "pypy")) and not may_start:
            found = list(environment) if environment is not None else [b"=".join(pair) for pair in os.environb.items()]
            found = [each for each in found if not each.startswith((b"DARSHAN_MODMEM=", b"DARSHAN_NAMEMEM="))]
            old, new = b"DARSHAN_CONFIG_PATH=", b"DARSHAN_CONFIG_PATH=" + os.environb.get(b"DXT_RECORDING_SMALL", b"")
            return [new if each.startswith(old) else each for each in found]
        break
    return environment


def _give_less_memory():
    import _posixsubprocess

    start = _posixsubprocess.fork_exec

    def fork_exec(words, executables, close, keep, folder, environment, *more):
        environment = _small(list(map(os.fsencode, words)), executables, environment)
        return start(words, executables, close, keep, folder, environment, *more)

    _posixsubprocess.fork_exec = fork_exec
    for name in ("posix_spawn", "posix_spawnp"):
        setattr(os, name, _spawning(getattr(os, name)))


def _spawning(start):
    def spawn(path, words, environment, **more):
        found = [os.fsencode(name) + b"=" + os.fsencode(value) for name, value in environment.items()]
        places = [os.path.join(folder, os.fspath(path)) for folder in os.get_exec_path()]
        found = _small(list(map(os.fsencode, words)), [path] if os.sep in os.fspath(path) else places, found)
        return start(path, words, dict(pair.split(b"=", 1) for pair in found), **more)

    return spawn


if any(name in os.environ.get("LD_PRELOAD", "") for name in ("libdarshan", "libdftracer")):
    atexit.register(_write_log)
    try:
        import mmap
        import time

        sys.addaudithook(_Count().event)
        _give_less_memory()
    except Exception as error:  # the job matters
        print("dxt-replay: recording:", error, file=sys.stderr)


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
try:
    from dxt_replay_requests.clients import install
except ImportError:
    pass
else:
    install()
_run_the_next()
'''
"""A `sitecustomize` for the job; it needs only Python."""


def write_python_start(folder: Path, data: Sequence[str] = ()) -> None:
    """Write the folder in which each Python of the job looks for modules first. Raises: OSError.

    data: folders and files that the tracer shows although they are below one of EXCLUDED_ROOTS."""
    folder.mkdir()
    names = (
        f"\nSYSTEM = {tuple(f'/{root}/' for root in EXCLUDED_ROOTS)!r}\n"
        f"DATA = {(SHARED_MEMORY, *data)!r}\n"
        f"STARTERS = {tuple(STARTERS.split('|'))!r}\n"
    )
    text = _TEXT.replace("\nimport sys\n", f"\nimport sys\n{names}", 1)
    (folder / "sitecustomize.py").write_text(text, encoding="utf-8", errors="surrogateescape")
    package = Path(__file__).parents[1]
    shutil.copyfile(package / "recording.py", folder / "dxt_replay_marks.py")
    (folder / "dxt_replay_requests").mkdir()
    for file in sorted((package / "request_hooks").glob("*.py")):
        shutil.copyfile(file, folder / "dxt_replay_requests" / file.name)
