"""Marks what a training does and when: one record of 32 bytes for each begin and end, in a file of each process.

    from dxt_replay import recording

    with recording("profile"):
        for batch in loader:
            train(batch)

`dxt-replay record` calls `start` in each Python process of a job, so that no line of the program changes. A record is
stored into a mapping of the file: it survives kill -9, SIGTERM, os._exit and a crash of the process, but not of the
machine. A failure to mark is printed once and ends the marks, never the job.

Needs the standard library alone (Python 3.8 or later): an application that lacks the package gets a copy of this file.

The file, `HOST.PID.NS.marks`, begins with a page: `HEADER`, then the host, ended by a zero byte. Records (`RECORD`)
follow. Its kind is the last field of a record that is stored, and 0 is no record.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import itertools
import mmap
import os
import struct
import sys
import threading
import time
import weakref
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial, wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

FOLDER_VARIABLE = "DXT_RECORDING_PROFILE"
"""Set by `dxt-replay record`: the folder for marks and profiles, instead of the one in the program."""

MAGIC = b"DXTMARK2"
HEADER = struct.Struct("<8sIIiIQQQ")
"""Magic, pid, parent, rank or -1, bytes of a record, CLOCK_MONOTONIC, CLOCK_REALTIME, begin of the process in ticks."""
HEADER_BYTES = 4096
RECORD = struct.Struct("<QQQIHH")
"""CLOCK_MONOTONIC ns, processor time of the thread in ns, number, thread, group, kind."""
FRESH_NS = 1_000_000
"""A record repeats the processor time of the thread's record before it, if that was taken since."""
SEGMENT = 1 << 16
"""Bytes by which a file grows."""
WHOLE_BYTES = 64 << 20
"""Bytes of a file up to which every step is marked."""
SPARSE = 128
"""Beyond that one step of so many is marked, and the begin of the next one; the others are sums, one a minute."""

KINDS = 39
(
    _, STEP, STEP_END, FETCH, FETCH_END, EVALUATION, EVALUATION_END, CHECKPOINT, CHECKPOINT_END, RESTORE, RESTORE_END,
    CHECKPOINT_ASYNC, CHECKPOINT_ASYNC_END, CHECKPOINT_WAIT, CHECKPOINT_WAIT_END, TAKE, TAKE_END, MAKE, MAKE_END,
    ANCHOR, ANCHOR_END, DEVICE, PASS, PASS_END, WORKER, RESUME, WORKER_BEGIN, WORKER_END, OPTIMIZER, EPOCH, LOOP_END,
    RANK, SUM, GET, GET_END, START, START_END, JOIN, JOIN_END,
) = range(KINDS)  # fmt: skip
"""The kinds of records by their number. A begin is odd and its end follows it, up to `anchor_end`.

- step: of `with recording.step()` and of Keras. number: of the step.
- fetch: the loop asks an iterator for a batch, and has it. number: of the fetch in its process.
- take: the same of PyTorch's DataLoader. number: of the batch in its pass; group: the pass, as in all that follow.
- make: a worker has the indices of a batch, and hands it over. number: of the task; group of the end: 1 for the answer
  that a worker's data have ended, which is no batch.
- anchor: written by a system call, which a tracer sees too. number: CLOCK_REALTIME; of the end: the anchor's record.
- device: processor time is that of the device for a step. number, group: as of its take; 1 << 15 is added to the group
  where the device had nothing left to do when the step's thread asked for the next batch.
- pass: a loader begins a pass. number: workers << 32 + prefetch factor. pass_end: it has no more batches.
- worker: number: worker << 32 + pid. resume: a persistent worker begins its next pass.
- optimizer: the end of an optimizer's step. number: steps so far; group: which optimizer. epoch: number.
  loop_end: of steps.
- get: the main thread takes something from a `queue.Queue`, or the result of a future. number: which so far; group: of
  the queue, 0 for futures.
- start, join: the main thread starts another one, and waits for its end. number of the end: of that thread.
- sum: of batches without records. Processor time: ns waited for them; number: how many; group: the kind of their begin.
"""
_OFTEN = frozenset((STEP, STEP_END, FETCH, FETCH_END, TAKE, TAKE_END, MAKE, MAKE_END, DEVICE, OPTIMIZER, GET, GET_END))
IDLE = 1 << 15
_MINUTE_NS = 60_000_000_000

RANK_VARIABLES = (
    "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "HOROVOD_RANK", "RANK", "SLURM_PROCID",
)  # fmt: skip
"""Variables in which launchers give a process its rank. Slurm's is last: its batch script has one too."""

ANNOTATION = "dxt_anchor"
ANCHORS = 3
"""Anchors at the begin and at the end of a process; several, because the first one is slow."""

_folder = ""
_file = None  # of this process
_main = threading.main_thread().ident


def launcher_rank() -> int:
    """This process's rank from torchrun, the MPI launcher or Slurm; -1 if none of them sets it."""
    # torchrun under srun: the inner launcher decides.
    names = ("RANK", *RANK_VARIABLES) if "TORCHELASTIC_RUN_ID" in os.environ else RANK_VARIABLES
    for value in (os.environ.get(name, "") for name in names):
        if value.isascii() and value.isdigit():
            return int(value)
    return -1


def say(text):
    print(f"dxt-replay: recording: {text}", file=sys.stderr)


class _File:
    """The marks of this process."""

    def __init__(self, folder):
        os.makedirs(folder, exist_ok=True)
        host = os.uname().nodename
        self.name = os.path.join(folder, f"{host}.{os.getpid()}.{time.monotonic_ns()}.marks")
        os.close(os.open(self.name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        began = 0
        with suppress(OSError, ValueError), open("/proc/self/stat", "rb") as stat:
            began = int(stat.read().rpartition(b")")[2].split()[19])
        now = time.monotonic_ns(), time.time_ns()
        head = HEADER.pack(MAGIC, os.getpid(), os.getppid(), launcher_rank(), RECORD.size, *now, began)
        head += host.encode("utf-8", "replace") + b"\0"
        self._written(head[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0"), 0)
        self.slots, self.views, self.local, self.lock = itertools.count(), [], threading.local(), threading.RLock()
        self.sparse, self.sums = False, {}

    def _written(self, data, at):
        """Write by a descriptor of the moment: a program may close all that it finds, and give their numbers to its
        own files."""
        descriptor = os.open(self.name, os.O_WRONLY | os.O_CLOEXEC)
        try:
            if os.pwrite(descriptor, data, at) < len(data):  # a full disk may take a part without an error
                raise OSError("no room")
        finally:
            os.close(descriptor)

    def _view(self, segment):
        """The mapping of a segment, None where the file system maps no files.

        Its room is taken by a write, since a full disk is an error there and ends the process in a mapping."""
        with self.lock:
            while len(self.views) <= segment:
                count = len(self.views)
                at = HEADER_BYTES + count * SEGMENT
                self._written(bytes(SEGMENT), at)
                view = _mapped(self.name, at)
                if len(self.views) == count:  # no signal handler has come between
                    self.views.append(view)
                if count > 1 and self.views[count - 2] is not None:
                    _let_go(self.views[count - 2])
                self.sparse = at > WHOLE_BYTES
            return self.views[segment]

    def mark(self, kind, number, group, cpu, when, *, now=time.monotonic_ns, own=time.thread_time_ns):
        """Store a record; that of a signal handler may lie within it, as each has a slot of its own."""
        try:
            thread, due, used = self.local.thread
        except AttributeError:
            thread, due, used = threading.get_native_id(), 0, 0
        if when is None:
            when = now()
        if when >= due:  # a system call, which takes longer than all the rest
            used = own()
            self.local.thread = thread, when + FRESH_NS, used
        if self.sparse and kind in _OFTEN and number % SPARSE > 1 and self._summed(kind, when):
            return
        slot = next(self.slots)
        segment, place = divmod(slot * RECORD.size, SEGMENT)
        view = self.views[segment] if segment < len(self.views) else self._view(segment)
        if view is None:
            record = RECORD.pack(when, used if cpu is None else cpu, number, thread, group, kind)
            self._written(record, HEADER_BYTES + slot * RECORD.size)
        else:
            RECORD.pack_into(view, place, when, used if cpu is None else cpu, number, thread, group, kind)

    def _summed(self, kind, now):
        """Whether this became a part of a sum: not an end whose begin has a record."""
        if kind in (FETCH, TAKE, MAKE, STEP):
            self.local.began = now
        elif kind in (FETCH_END, TAKE_END, MAKE_END, STEP_END):
            began = self.local.__dict__.pop("began", None)
            if began is None:
                return False
            count, waited, since = self.sums.get(kind - 1, (0, 0, now))
            self.sums[kind - 1] = count + 1, waited + now - began, since
            if now - since > _MINUTE_NS:
                self.store_sums()
        return True

    def store_sums(self):
        sums, self.sums = self.sums, {}
        for kind, (count, waited, _) in sums.items():
            self.mark(SUM, count, kind, waited, None)

    def anchor(self):
        slot = next(self.slots)
        self._view(slot * RECORD.size // SEGMENT)
        record = RECORD.pack(
            time.monotonic_ns(), time.thread_time_ns(), time.time_ns(), threading.get_native_id(), 0, ANCHOR
        )
        with _annotated(slot):
            self._written(record, HEADER_BYTES + slot * RECORD.size)
        self.mark(ANCHOR_END, slot, 0, None, None)


def _mapped(name, at):
    """A segment of a file in memory, which keeps no descriptor (`mmap.mmap` keeps one); None where that is refused."""
    try:
        import ctypes

        libc = ctypes.CDLL(None)
        libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3,
                                                                  ctypes.c_long]  # fmt: skip
        descriptor = os.open(name, os.O_RDWR | os.O_CLOEXEC)
        try:
            how = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED
            address = libc.mmap(None, SEGMENT, *how, descriptor, at)
        finally:
            os.close(descriptor)
    except (ImportError, OSError, AttributeError):
        return None
    failed = ctypes.c_void_p(-1).value
    return None if address in (None, failed) else (ctypes.c_char * SEGMENT).from_address(address)


def _let_go(view):
    """Have the kernel take the memory of a full segment. The mapping stays, for a thread that is late with a record."""
    import ctypes

    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.madvise(ctypes.addressof(view), SEGMENT, 4)  # MADV_DONTNEED: of a shared mapping, the file keeps all of it


def _annotated(slot):
    """The annotation of an anchor for each profiler that may run."""
    stack, facts = ExitStack(), {"i": slot, "rank": launcher_rank(), "pid": os.getpid()}
    tensorflow, jax, torch = map(sys.modules.get, ("tensorflow", "jax", "torch"))
    for made in (
        lambda: tensorflow and tensorflow.profiler.experimental.Trace(ANNOTATION, **facts),
        lambda: jax and jax.profiler.TraceAnnotation(ANNOTATION, **facts),
        # entered without a profiler, it costs each new worker 2 ms of page faults
        lambda: torch and torch.autograd._profiler_enabled() and torch.profiler.record_function(
            f"{ANNOTATION}#{','.join(f'{name}={value}' for name, value in facts.items())}#"
        ),
    ):  # fmt: skip
        # AttributeError: a framework that another thread is still importing, or an unrelated module of that name
        with suppress(AttributeError):
            stack.enter_context(made() or nullcontext())
    return stack


def mark(kind, number=0, group=0, cpu=None, when=None):
    """Store a record in the file of this process, which begins with anchors. when: CLOCK_MONOTONIC, if it is past."""
    global _folder, _file
    if not _folder:
        return
    try:
        if _file is None:
            _file = _File(_folder)
            for _ in range(ANCHORS):
                _file.anchor()
        if kind == ANCHOR:
            _file.anchor()
        else:
            _file.mark(kind, number, group, cpu, when)
    except Exception as error:  # the job matters, its marks do not
        _folder, _file = "", None
        say(f"{error}: no further marks of process {os.getpid()}")


def anchors():
    """Mark instants that a tracer of system calls sees too."""
    for _ in range(ANCHORS):
        mark(ANCHOR)


def _forked():
    global _file
    _file = None  # the parent's; the child opens its own at its first mark


def _stop():
    """No further marks of this process."""
    global _folder, _file
    _ends()
    _folder, _file = "", None


def _ends():
    if _file is not None:
        with suppress(Exception):  # a device that is gone
            _device.read()
        _file.store_sums()
        anchors()


@contextmanager
def span(kind):
    """Mark the begin and the end of a phase, such as EVALUATION."""
    mark(kind)
    try:
        yield
    finally:
        mark(kind + 1)


def spanning(kind, function):
    """A function whose calls are marked as a phase of this kind."""

    def calling(*arguments, **named):
        with span(kind):
            return function(*arguments, **named)

    return _marked(function, calling)


def _marked(function, calling):
    """`calling`, which stands in for a function."""
    calling = wraps(function)(calling)
    calling.dxt_marked = True
    return calling


_fetched = itertools.count()
_inside = threading.local()


def fetching(function):
    """The `__next__` of an iterator over batches, marked; the innermost of nested iterators has no marks."""

    def following(self, *arguments, **named):
        if getattr(_inside, "fetch", False) or not _folder:
            return function(self, *arguments, **named)
        _inside.fetch, number = True, next(_fetched)
        mark(FETCH, number)
        try:
            found = function(self, *arguments, **named)
        except BaseException:
            mark(LOOP_END, number)
            raise
        finally:
            _inside.fetch = False
        mark(FETCH_END, number)
        return found

    return following


def start(folder="profile"):
    """Begin to mark in this folder, or in that of DXT_RECORDING_PROFILE, and hook what is or will be imported."""
    global _folder
    folder = os.path.abspath(os.environ.get(FOLDER_VARIABLE) or folder)
    if _folder != folder:
        if not _folder:
            os.register_at_fork(after_in_child=_forked)
            atexit.register(_ends)
        _folder = folder
    for name in HOOKS:
        if name in sys.modules and getattr(sys.modules[name], "__spec__", None) is not None:
            _hook(sys.modules[name])
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


_finding: set[str] = set()


def hooked_spec(name, path=None, target=None):
    """The spec of a module of HOOKS as Python finds it, whose loader then hooks it; None for another module."""
    if name not in HOOKS or name in _finding:
        return None
    _finding.add(name)
    try:
        spec = importlib.util.find_spec(name)
    finally:
        _finding.discard(name)
    if spec is None or not hasattr(spec.loader, "exec_module"):
        return None
    executing = spec.loader.exec_module

    def exec_module(module):
        executing(module)
        _hook(module)

    with suppress(AttributeError):  # a loader with slots is left as it is
        spec.loader.exec_module = exec_module
    return spec


_finder = SimpleNamespace(find_spec=hooked_spec)


def _hook(module):
    if getattr(module, "dxt_marked", False):
        return
    try:
        HOOKS[module.__name__](module)
        module.dxt_marked = True
    except Exception as error:  # an unknown release of the framework
        say(f"{module.__name__} is not marked: {type(error).__name__}: {error}")


def _replace(owner, names, make):
    """Replace those attributes of a module or class that there are."""
    for name in names:
        found = vars(owner).get(name)
        if found is not None and not getattr(found, "dxt_marked", False):
            setattr(owner, name, _marked(found, make(found)))


# What a program may call itself


class Recording:
    """Returned by `recording`: marks the steps of a loop that hides its batches, phases, and the end."""

    def __init__(self, folder, rank, steps, profile_steps, framework):
        self.folder = os.path.abspath(os.environ.get(FOLDER_VARIABLE) or folder)
        """The folder of the marks."""
        self.steps = 0
        """Number of steps completed since the start."""
        self._limit, self._rank, self._profiled, self._framework = steps, rank, profile_steps, framework
        self._end_of_profiler = None
        self._running = False

    def start(self) -> None:
        """Begin to mark, and begin step 0."""
        self.steps = 0
        start(self.folder)
        mark(RANK, launcher_rank() + 1 if self._rank is None else self._rank + 1)
        anchors()
        self._running = True

    def next_step(self) -> None:
        """End the current step and begin the next one, which includes the fetch of its batch."""
        if self._running:
            mark(STEP_END, self.steps)
            self.counted()

    def counted(self) -> None:
        """Count a step that is marked by other means: a framework's callback calls it."""
        if not self._running:
            return
        self.steps += 1
        if self._profiled and self.steps == PROFILE_AFTER:
            begin = _profiler(self._framework)
            self._end_of_profiler = _attempted("the profiler could not start", begin, self._folder_of_profile())
            anchors()
        elif self.steps == PROFILE_AFTER + self._profiled:
            self._end_profile()
        if self.steps == self._limit:
            self.stop()

    @contextmanager
    def step(self) -> Iterator[None]:
        """One training step: it ends with the context, and the next one begins. The first began with the recording.

        The time from there to the next `step()` counts as the fetch of a batch.
        """
        if self._running:
            mark(STEP, self.steps)
        yield
        self.next_step()

    def evaluation(self) -> AbstractContextManager[None]:
        """A validation of the model, marked as such. It does not count as input wait of the step around it.

        with r.evaluation():
            validate(model, validation_loader)
        """
        return span(EVALUATION)

    def checkpoint(self) -> AbstractContextManager[None]:
        """A checkpoint that is written by other means than PyTorch's, Keras' and Lightning's own."""
        return span(CHECKPOINT)

    def stop(self) -> None:
        """End the recording. Further calls do nothing."""
        if not self._running:
            return
        self._running = False
        mark(LOOP_END, self.steps)
        self._end_profile()
        anchors()
        if not os.environ.get(FOLDER_VARIABLE):
            _stop()

    def _end_profile(self):
        if self._end_of_profiler is not None:
            anchors()
            _attempted("the profile could not be written", self._end_of_profiler)
            self._end_of_profiler = None

    def _folder_of_profile(self):
        rank = launcher_rank() if self._rank is None else self._rank
        place = os.path.join(self.folder, f"rank{rank}" if rank >= 0 else f"process{os.getpid()}")
        os.makedirs(place, exist_ok=True)
        return place

    def __enter__(self) -> Recording:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


PROFILE_AFTER = 20
"""Steps before a profile begins: the first ones compile, and fill caches."""


def recording(
    folder: str | os.PathLike[str] = "profile",
    *,
    framework: str = "auto",
    rank: int | None = None,
    steps: int | None = None,
    profile_steps: int = 0,
) -> Recording:
    """Mark the training loop inside the `with`: its batches, steps, evaluations and checkpoints, and when they were.

        with recording("profile"):
            for batch in loader:
                train(batch)

    Under `dxt-replay record`, which marks every job, only `step()` and its like add something.
    `rank`: by default from torch.distributed or the launcher. `steps`: number of steps after which it stops.
    `profile_steps`: number of steps that the framework's profiler records too, which shows kernels, operators and
    tf.data's threads, and makes these steps slower. Both count the steps of `step()` or of a framework's callback.
    `framework`: whose profiler: torch, tensorflow or jax, by default the first imported one.
    Raises: ValueError for another framework.
    """
    if framework not in ("auto", *_PROFILERS):
        raise ValueError(f"framework is {framework!r}: choose auto, {', '.join(_PROFILERS)}")
    return Recording(folder, rank, steps, profile_steps, framework)


def keras_recording(folder: str | os.PathLike[str] = "profile", **choices: Any) -> Any:
    """A Keras callback that works as `recording`, with its arguments.

    model.fit(dataset, callbacks=[keras_recording("profile")])
    """
    keras = sys.modules.get("keras") or importlib.import_module("tensorflow").keras
    run = recording(folder, **choices)

    class KerasRecording(keras.callbacks.Callback):  # type: ignore[name-defined]
        def on_train_begin(self, logs=None):
            run.stop()  # an earlier fit() that raised
            run.start()

        def on_train_batch_end(self, batch, logs=None):
            run.counted()

        def on_train_end(self, logs=None):
            run.stop()

    return KerasRecording()


def lightning_recording(folder: str | os.PathLike[str] = "profile", **choices: Any) -> Any:
    """A Lightning callback that works as `recording`, with its arguments.

    Trainer(callbacks=[lightning_recording("profile")])
    """
    old = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
    callbacks = importlib.import_module("pytorch_lightning.callbacks" if old else "lightning.pytorch.callbacks")
    run = recording(folder, **choices)

    class LightningRecording(callbacks.Callback):  # type: ignore[name-defined]
        def on_train_start(self, trainer, module):
            run.start()

        def on_train_batch_end(self, *arguments, **named):
            run.counted()

        def on_validation_start(self, trainer, module):
            mark(EVALUATION)

        def on_validation_end(self, trainer, module):
            mark(EVALUATION_END)

        def on_train_end(self, trainer, module):
            run.stop()

        def on_exception(self, trainer, module, exception):
            run.stop()

    return LightningRecording()


# The profiler of some steps, for what marks do not show


def _torch_profiler(folder):
    profiler = sys.modules["torch"].profiler
    profile = profiler.profile(on_trace_ready=profiler.tensorboard_trace_handler(folder, use_gzip=True))
    profile.start()
    return profile.stop


def _tensorflow_profiler(folder):
    profiler = sys.modules["tensorflow"].profiler.experimental
    profiler.start(folder, options=profiler.ProfilerOptions(host_tracer_level=2))
    return profiler.stop


def _jax_profiler(folder):
    profiler, options = sys.modules["jax"].profiler, {}
    if hasattr(profiler, "ProfileOptions"):
        options["profiler_options"] = profiler.ProfileOptions()
        options["profiler_options"].python_tracer_level = 0  # its tracer of Python calls is expensive
    profiler.start_trace(folder, **options)
    return profiler.stop_trace


_PROFILERS = {"torch": _torch_profiler, "jax": _jax_profiler, "tensorflow": _tensorflow_profiler}
"""Framework -> what starts its profiler with a folder, and returns what stops it."""


def _profiler(framework):
    """The profiler of a framework; for "auto" that of the first imported one. TensorFlow imports JAX if it can."""
    imported = [name for name in ("torch", "tensorflow", "jax") if hasattr(sys.modules.get(name), "profiler")]
    return _PROFILERS[imported[0] if framework == "auto" and imported else framework]


def _attempted(what, function, *arguments):
    try:
        return function(*arguments)
    except Exception as error:
        say(f"{what}: {error}")
        return None


# PyTorch: the loop takes batches, workers make them


_passes = itertools.count(1)
_optimized = itertools.count(1)


def _mark_loaders(module):
    """Mark passes and the batches that the loop takes, of PyTorch's DataLoader and of torchdata's on top of it."""

    def taking(take):
        def __next__(self):
            group, number = getattr(self, "_dxt_pass", 0), self._num_yielded
            if not group or getattr(_inside, "take", False):
                return take(self)  # the base class of an iterator that is marked itself
            _inside.take = True
            _device.ask()
            mark(TAKE, number, group)
            try:
                found = take(self)
            except BaseException:
                mark(PASS_END, number, group)
                raise
            finally:
                _inside.take = False
            mark(TAKE_END, number, group)
            _device.begin(number, group)
            return found

        return __next__

    def resetting(reset):
        def _reset(self, loader, *arguments, **named):
            self._dxt_pass = next(_passes) & (IDLE - 1)
            mark(PASS, self._num_workers << 32 | (getattr(self, "_prefetch_factor", 0) or 0), self._dxt_pass)
            for number, each in enumerate(getattr(self, "_workers", ())):
                mark(WORKER, number << 32 | each.pid, self._dxt_pass)
            return reset(self, loader, *arguments, **named)

        return _reset

    def beginning(init):
        def __init__(self, *arguments, **named):
            self._dxt_pass = next(_passes) & (IDLE - 1)
            mark(PASS, 0, self._dxt_pass)
            init(self, *arguments, **named)

        return __init__

    for name, method, make in (
        ("BaseDataLoaderIter", "__next__", taking),
        ("MultiProcessingDataLoaderIter", "_reset", resetting),
        ("SingleProcessDataLoaderIter", "__init__", beginning),
    ):
        for owner in (vars(module).get(f"_{name}"), vars(module).get(f"_Stateful{name}")):
            if owner is not None:
                _replace(owner, [method], make)
    if "_worker_loop" in vars(module):  # torchdata imports the function, PyTorch asks the module for it
        _mark_worker(module)


def _mark_worker(module):
    if not isinstance(module._worker_loop, _WorkerLoop):
        module._worker_loop = _WorkerLoop(_folder, module.__name__, module._worker_loop)


class _WorkerLoop:
    """Stands in for the function that a worker process runs; fork, spawn and forkserver carry it there."""

    dxt_marked = True

    def __init__(self, folder, module, original=None):
        found = original or importlib.import_module(module)._worker_loop
        self.folder, self.module, self.original = folder, module, getattr(found, "original", found)

    def __reduce__(self):
        return _WorkerLoop, (self.folder, self.module)

    def __call__(self, *arguments, **named):
        global _folder
        _folder, _inside.take = self.folder, True  # its own threads are no threads of the loop
        mark(WORKER_BEGIN)
        tasks, made = arguments[2:4]  # index_queue and data_queue
        try:
            self.original(*arguments[:2], *_Queue.around(tasks, made), *arguments[4:], **named)
        finally:
            _ends()  # a worker leaves by os._exit, without the functions that are registered for the end
            mark(WORKER_END)


class _Queue:
    """The queue of the indices, or that of the batches: a batch is made from the one until the other."""

    number = None

    def __init__(self, queue):
        self.queue = queue

    @staticmethod
    def around(tasks, made):
        indices, batches = _Queue(tasks), _Queue(made)

        def get(*arguments, **named):
            task = tasks.get(*arguments, **named)
            if isinstance(task, tuple):
                indices.number = task[0]
                mark(MAKE, task[0])
            elif type(task).__name__ == "_ResumeIteration":
                mark(RESUME)
            return task

        def put(batch, *arguments, **named):
            if indices.number is not None:
                stop = type(batch[1]).__name__ == "_IterableDatasetStopIteration"
                mark(MAKE_END, indices.number, int(stop))
                indices.number = None
            made.put(batch, *arguments, **named)

        indices.get, batches.put = get, put
        return indices, batches

    def __getattr__(self, name):
        return getattr(self.queue, name)


class _Device:
    """Device time of each step, by pairs of timing events that are read two steps later and never waited for."""

    def __init__(self):
        self.open, self.done, self.spare = None, [], []

    def _cuda(self):
        cuda = getattr(sys.modules.get("torch"), "cuda", None)  # ROCm has the same name
        return cuda if cuda is not None and cuda.is_initialized() else None

    def begin(self, number, group):
        """The thread of the loop has the batch of a step."""
        cuda = self._cuda()
        if cuda is None:
            return
        pair = self.spare.pop() if self.spare else (cuda.Event(enable_timing=True), cuda.Event(enable_timing=True))
        pair[0].record()
        self.open = (number, group, *pair)

    def ask(self):
        """It asks for the next one."""
        if self.open is None or (cuda := self._cuda()) is None:
            return
        number, group, first, last = self.open
        self.open = None
        idle = cuda.current_stream().query()
        last.record()
        self.done.append((number, group | (IDLE if idle else 0), first, last))
        self.read(2)

    def read(self, kept=0):
        """Store the times of the steps that the device has done, but of the last `kept` ones.

        A forked worker has the pairs of its parent, and must not use the device."""
        while self._cuda() is not None and len(self.done) > kept and self.done[0][3].query():
            number, group, first, last = self.done.pop(0)
            mark(DEVICE, number, group, int(first.elapsed_time(last) * 1e6))
            self.spare.append((first, last))


_device = _Device()


def _mark_optimizers(module):
    places = {}

    def stepped(optimizer, *_):
        number = next(_optimized)
        if number == 1:
            _mark_distributed_rank()
        mark(OPTIMIZER, number, min(places.setdefault(id(optimizer), len(places)), 0x7FFF))

    module.register_optimizer_step_post_hook(stepped)


def _mark_distributed_rank():
    with suppress(AttributeError, RuntimeError, ValueError):
        distributed = sys.modules["torch"].distributed
        if distributed.is_available() and distributed.is_initialized():
            mark(RANK, int(distributed.get_rank()) + 1)


_got = itertools.count(1)
_queues: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def _marks_nothing():
    """Whether this is another thread than the main one, or what a fetch does to have its batch."""
    inside = vars(_inside)
    return not _folder or threading.get_ident() != _main or inside.get("take") or inside.get("fetch")


def _mark_threads(module):
    """When the main thread starts another one, which may save, and waits for its end."""

    def calling(kind):
        def marked(method):
            def called(self, *arguments, **named):
                if _marks_nothing():
                    return method(self, *arguments, **named)
                mark(kind)
                try:
                    return method(self, *arguments, **named)
                finally:
                    mark(kind + 1, getattr(self, "native_id", 0) or 0)

            return called

        return marked

    for name, kind in (("start", START), ("join", JOIN)):
        _replace(module.Thread, [name], calling(kind))


def _mark_gets(module):
    """What the main thread takes from other threads: a loop's batches, where a thread of the program makes them."""

    def getting(get):
        def calling(self, *arguments, **named):
            if _marks_nothing():
                return get(self, *arguments, **named)
            number = next(_got)
            group = min(_queues.setdefault(self, len(_queues) + 1), 0x7FFF) if module.__name__ == "queue" else 0
            mark(GET, number, group)
            try:
                return get(self, *arguments, **named)
            finally:
                mark(GET_END, number, group)

        return calling

    kind, name = ("Queue", "get") if module.__name__ == "queue" else ("Future", "result")
    _replace(vars(module)[kind], [name], getting)


def _mark_torch(module):
    """`torch.save` and `torch.load`, under both of their names."""
    for owner in (module.serialization, module):
        _replace(owner, ["save"], partial(spanning, CHECKPOINT))
        _replace(owner, ["load"], partial(spanning, RESTORE))


def _mark_distributed(module):
    """torch.distributed.checkpoint, in each module that has its functions already."""

    def waiting(save):
        def saving(*arguments, **named):
            with span(CHECKPOINT_ASYNC):
                started = save(*arguments, **named)
            done = getattr(started, "upload_completion", started)  # newer releases may return two futures
            for wait in ("result", "exception"):
                with suppress(AttributeError):
                    setattr(done, wait, spanning(CHECKPOINT_WAIT, getattr(done, wait)))
            return started

        return saving

    made = {"save": partial(spanning, CHECKPOINT), "load": partial(spanning, RESTORE), "async_save": waiting}
    for name, make in made.items():
        function = vars(module).get(name)
        _replace(module, [name], make)
        for each in list(sys.modules.values()):  # `from torch.distributed.checkpoint import save` is common
            if function is not None and isinstance(each, type(sys)) and vars(each).get(name) is function:
                setattr(each, name, vars(module)[name])


# Keras and tf.data


def _mark_keras(module):
    """Steps, evaluations and epochs of `fit`, `evaluate` and `predict`, as their list of callbacks is told of them."""

    def before(kind):
        def make(method):
            def calling(self, *arguments, **named):
                mark(kind, arguments[0] if arguments and isinstance(arguments[0], int) else 0)
                return method(self, *arguments, **named)

            return calling

        return make

    for name, kind in (
        ("epoch_begin", EPOCH), ("train_batch_begin", STEP), ("train_batch_end", STEP_END), ("train_end", LOOP_END),
        ("test_begin", EVALUATION), ("test_end", EVALUATION_END), ("predict_begin", EVALUATION),
        ("predict_end", EVALUATION_END),
    ):  # fmt: skip
        _replace(module.CallbackList, [f"on_{name}"], before(kind))


def _mark_saves(module):
    names = ["save", "save_weights", "save_checkpoint", "_save_checkpoint"]
    _replace(vars(module).get("Model") or module.Trainer, names, partial(spanning, CHECKPOINT))


class _Fetches:
    """Fetches at one place of a `tf.function`, whose operators store their times into memory of TensorFlow's.

    The caller of the function reads them afterwards. Calls of Python at each fetch take seven times as long."""

    PLACES = 256
    """Fetches of one call that are kept. A constant of 128 elements or less would be copied into the graph."""

    def __init__(self, tf):
        self.tf, self.seen, self.known = tf, 0, [0.0] * self.PLACES
        with tf.init_scope(), tf.device("CPU:0"):
            self.tensors = [tf.zeros(self.PLACES, kind) for kind in (tf.int32, tf.float64, tf.float64)]
            tf.raw_ops.InplaceUpdate(x=self.tensors[1], i=[0], v=tf.constant([-1.0], tf.float64))
        self.count, self.begins, self.ends = map(memoryview, self.tensors)
        if self.begins[0] != -1:
            raise RuntimeError("its InplaceUpdate copies")

    def around(self, following):
        """What `following` gives, with operators before and after."""
        tf, (count, begins, ends) = self.tf, self.tensors

        def store(times):
            return tf.raw_ops.InplaceUpdate(x=times, i=place, v=tf.reshape(tf.timestamp(), [1]))

        with tf.device("CPU:0"):
            place = tf.slice(tf.raw_ops.InplaceAdd(x=count, i=[0], v=[1]), [0], [1]) % self.PLACES
            begin = store(begins)
        with tf.control_dependencies([begin]):
            found = following()
        with tf.control_dependencies(tf.nest.flatten(found, expand_composites=True)), tf.device("CPU:0"):
            end = store(ends)
        with tf.control_dependencies([end]):
            return tf.nest.map_structure(tf.identity, found, expand_composites=True)

    def read(self):
        """Mark the fetches since the last call. One that found no more data has no end."""
        now, count = time.monotonic_ns(), self.count[0]
        ahead = time.time_ns() - now
        for each in range(self.seen, count):
            number, place = next(_fetched), (each + 1) % self.PLACES
            begin, end = self.begins[place], self.ends[place]
            if each >= count - self.PLACES and begin != self.known[place]:  # the end of other data may cancel it
                self.known[place] = begin
                mark(FETCH, number, when=min(int(begin * 1e9) - ahead, now))
                if end >= begin:
                    mark(FETCH_END, number, when=min(int(end * 1e9) - ahead, now))
        self.seen = count


def _mark_functions(module):
    """Read the fetches of a `tf.function` after each call."""

    def reading(call):
        def __call__(self, *arguments, **named):
            if getattr(_inside, "function", None) is not None:
                return call(self, *arguments, **named)
            _inside.function = self
            try:
                return call(self, *arguments, **named)
            finally:
                _inside.function = None
                for fetches in vars(self).get("dxt_fetches", ()):
                    fetches.read()

        return __call__

    _replace(module.Function, ["__call__"], reading)


def _mark_tf_data(module):
    """Fetches from tf.data: in Python, and inside a `tf.function`."""
    tf = importlib.import_module("tensorflow")

    def marked(following):
        def calling(self):
            if not _folder:
                return following(self)
            if tf.executing_eagerly():
                return fetching(following)(self)
            function = getattr(_inside, "function", None)
            if function is None:  # made for another use, as by a worker on another machine
                return following(self)
            try:
                fetches = _Fetches(tf)
            except Exception as error:  # an unknown release of TensorFlow
                say(f"fetches of tf.data are not marked: {type(error).__name__}: {error}")
                return following(self)
            vars(function).setdefault("dxt_fetches", []).append(fetches)
            return fetches.around(lambda: following(self))

        return calling

    _replace(module.OwnedIterator, ["_next_internal", "get_next_as_optional"], marked)


def _mark_grain(module):
    """The loop asks the outermost iterator, in the thread that made it; threads that read ahead ask inner ones."""
    if "DataLoaderIterator" in vars(module):
        _replace(module.DataLoaderIterator, ["__next__"], fetching)
    if not module.__name__.endswith(".dataset"):
        return

    def made(init):
        def __init__(self, *arguments, **named):
            self._dxt_thread = threading.get_ident()
            init(self, *arguments, **named)

        return __init__

    def following(function):
        marked = fetching(function)

        def __next__(self):
            return (marked if vars(self).get("_dxt_thread") == threading.get_ident() else function)(self)

        return __next__

    def __init_subclass__(kind, **named):
        super(module.DatasetIterator, kind).__init_subclass__(**named)
        _replace(kind, ["__next__"], following)

    _replace(module.DatasetIterator, ["__init__"], made)
    module.DatasetIterator.__init_subclass__ = classmethod(__init_subclass__)


HOOKS = {
    "torch.utils.data.dataloader": _mark_loaders,
    "torchdata.stateful_dataloader.stateful_dataloader": _mark_loaders,
    "torch.utils.data._utils.worker": _mark_worker,
    "threading": _mark_threads,
    "queue": _mark_gets,
    "concurrent.futures._base": _mark_gets,
    "torch.optim.optimizer": _mark_optimizers,
    "torch": _mark_torch,
    "torch.distributed.checkpoint": _mark_distributed,
    "lightning.pytorch.trainer.trainer": _mark_saves,
    "pytorch_lightning.trainer.trainer": _mark_saves,
    "transformers.trainer": _mark_saves,
    "keras.src.callbacks.callback_list": _mark_keras,
    "keras.src.models.model": _mark_saves,
    "tensorflow.python.data.ops.iterator_ops": _mark_tf_data,
    "tensorflow.python.eager.polymorphic_function.polymorphic_function": _mark_functions,
    "grain._src.python.data_loader": _mark_grain,
    "grain._src.python.dataset.dataset": _mark_grain,
}
"""What is hooked when a module has been imported."""
