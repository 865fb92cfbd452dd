"""Runs the framework's profiler around a training loop, marks its steps, and sets the anchors that fix the clocks.

    from dxt_replay.profiler_merge.recording import recording

    with recording("profile") as r:
        for batch in loader:
            with r.step():
                train(batch)

Needs the standard library alone: an application that lacks the rest gets copies of this file and of anchor.py.
"""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import wraps
from importlib import import_module
from pathlib import Path
from threading import get_ident
from types import ModuleType, TracebackType
from typing import Any, Protocol

_PLACE = __name__.removesuffix("recording")  # in the package, or empty where copies lie beside the program
_beside = import_module(f"{_PLACE}anchor")

FOLDER_VARIABLE = "DXT_RECORDING_PROFILE"
"""Set by `dxt-replay record`: the folder for profiles, instead of the one in the program."""

ANCHORS = 3
"""Anchors at the beginning and at the end; several, because the first one is slow."""

FRAMEWORKS = ("torch", "tensorflow", "jax")
"""Modules of the profilers, in the order of choice among imported ones. TensorFlow imports JAX if it is installed."""

_FIRST_IN_PROGRAM = ("torch", "jax", "tensorflow")
"""The order among those that the main program itself names: a JAX program uses TensorFlow for its input."""


INPUT_FOLDER = "tf.data"
"""Folder, beside the output of JAX's profiler, for that of TensorFlow's profiler of the input pipeline."""

_phases: dict[str, int] = {}
"""Number of profiles that this process has begun in each folder."""

BETWEEN_STEPS = "between_steps"
"""Annotation from the end of a step to the next `with r.step()`: the loop fetches its batch then."""

EVALUATION = "evaluation"
"""Annotation of a validation between steps."""


class _Profiler(Protocol):
    """A framework's profiler.

    `mark` begins the step of a number and ends the previous one. `annotation` is a context that appears as a span of
    that name."""

    def start(self, folder: str) -> None: ...

    def mark(self, number: int) -> None: ...

    def annotation(self, name: str) -> AbstractContextManager[Any]: ...

    def stop(self) -> None: ...


class _Torch:
    """PyTorch: `ProfilerStep#N` from step to step, one trace at the end."""

    def __init__(self, torch: Any) -> None:
        self._module = torch.profiler

    def start(self, folder: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without warm-up: the first steps are wanted too
            every_step = self._module.schedule(wait=0, warmup=0, active=10**9)
        handler = self._module.tensorboard_trace_handler(folder, use_gzip=True)
        self._profile = self._module.profile(schedule=every_step, on_trace_ready=handler)
        self._profile.start()

    def mark(self, number: int) -> None:
        if number:
            self._profile.step()

    def annotation(self, name: str) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = self._module.record_function(name)
        return found

    def stop(self) -> None:
        self._profile.stop()


class _Annotated:
    """A profiler whose steps are annotations. The annotation after the last step is dropped, because it ends
    too late."""

    _open: Any = None

    def __init__(self, module: Any) -> None:
        self._module = module.profiler

    def mark(self, number: int) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open = self._step(number)
        self._open.__enter__()

    def stop(self) -> None:
        self._stop_profiler()
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None

    def annotation(self, name: str) -> AbstractContextManager[Any]:
        raise NotImplementedError

    def _step(self, number: int) -> Any:
        raise NotImplementedError

    def _stop_profiler(self) -> None:
        raise NotImplementedError


class _TensorFlow(_Annotated):
    """TensorFlow: steps are `train` annotations, as in Keras."""

    def start(self, folder: str) -> None:
        options = self._module.experimental.ProfilerOptions(host_tracer_level=2)
        self._module.experimental.start(folder, options=options)

    def annotation(self, name: str) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = self._module.experimental.Trace(name)
        return found

    def _step(self, number: int) -> Any:
        return self._module.experimental.Trace("train", step_num=number, _r=1)

    def _stop_profiler(self) -> None:
        self._module.experimental.stop()


class _Jax(_Annotated):
    """JAX: steps are its step annotations. Its tracer of Python calls is off if possible, because it is expensive.

    JAX's profiler does not see tf.data. If the program has imported TensorFlow, TensorFlow's profiler runs as well.
    """

    _input: _TensorFlow | None = None

    def start(self, folder: str) -> None:
        if hasattr(sys.modules.get("tensorflow"), "profiler"):
            self._input = _TensorFlow(sys.modules["tensorflow"])
            self._input.start(os.path.join(folder, INPUT_FOLDER))
        if hasattr(self._module, "ProfileOptions"):
            options = self._module.ProfileOptions()
            options.python_tracer_level = 0
            self._module.start_trace(folder, profiler_options=options)
        else:
            self._module.start_trace(folder)

    def annotation(self, name: str) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = self._module.TraceAnnotation(name)
        return found

    def _step(self, number: int) -> Any:
        return self._module.StepTraceAnnotation("train", step_num=number)

    def _stop_profiler(self) -> None:
        if self._input is not None:
            self._input.stop()
        self._module.stop_trace()


class _NoProfiler:
    """Anchors only: they date Darshan's log, but nothing marks the steps."""

    def start(self, folder: str) -> None:
        _say(
            "no profiler runs, as none of torch, jax and tensorflow is imported: anchors are set, steps are not marked"
        )

    def mark(self, number: int) -> None:
        pass

    def annotation(self, name: str) -> AbstractContextManager[Any]:
        return nullcontext()

    def stop(self) -> None:
        pass


_PROFILERS: dict[str, Callable[[Any], _Profiler]] = {"torch": _Torch, "jax": _Jax, "tensorflow": _TensorFlow}


class Recording:
    """Returned by `recording`: the profiler of one process, and the number of its current step."""

    def __init__(self, folder: str, profiler: _Profiler, rank: int, steps: int | None) -> None:
        self.folder = folder
        """The folder of this rank's profile; one below it for a later recording in the same process."""
        self._first_folder = folder
        self.steps = 0
        """Number of steps completed since the start."""
        self._profiler: _Profiler | None = profiler
        self._rank, self._limit = rank, steps
        self._running = False
        self._between: AbstractContextManager[Any] | None = None
        self._evaluation: AbstractContextManager[Any] | None = None
        self._fetching = False
        self._thread = get_ident()
        self._watched: list[tuple[Any, str, Any]] = []

    def start(self) -> None:
        """Start the profiler and begin step 0. An error is printed, and the training continues."""
        self.steps = 0
        self._thread = get_ident()
        self.folder = _folder_of_phase(self._first_folder)
        os.makedirs(self.folder, exist_ok=True)
        try:
            assert self._profiler is not None
            self._profiler.start(self.folder)
        except Exception as error:
            _say(f"the profiler could not start, and steps are not marked: {error}")
            self._profiler = None
        self._running = True
        # Keras tells no callback of an error in fit(), so the recorded part is written when the program ends.
        atexit.register(self.stop)
        self._anchors()
        if isinstance(self._profiler, _Torch):
            self._watch_distributed_saves()
        if self._profiler is not None:
            self._profiler.mark(0)

    def next_step(self) -> None:
        """End the current step and begin the next one, which includes the fetch of its batch."""
        self.steps += 1
        self._has_batch()
        if self._profiler is not None and self._running:
            self._profiler.mark(self.steps)
            if self.steps == self._limit:
                self.stop()

    @contextmanager
    def step(self) -> Iterator[None]:
        """One training step: it ends with the context, and the next one begins. The first began with the recording.

        The time from there to the next `step()` counts as the fetch of a batch.
        """
        self._has_batch()
        yield
        self.next_step()
        self._fetches_batch()

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """A validation of the model, marked as such. It does not count as input wait of the step around it.

        with r.evaluation():
            validate(model, validation_loader)
        """
        self.begin_evaluation()
        try:
            yield
        finally:
            self.end_evaluation()

    def begin_evaluation(self) -> None:
        """As `evaluation`, for a begin and an end in two places, such as a framework's callback."""
        self._fetching = self._between is not None
        self._has_batch()
        if self._evaluation is None and self._profiler is not None and self._running:
            self._evaluation = self._profiler.annotation(EVALUATION)
            self._evaluation.__enter__()

    def end_evaluation(self) -> None:
        """End the evaluation that `begin_evaluation` began."""
        if self._evaluation is not None:
            self._evaluation.__exit__(None, None, None)
            self._evaluation = None
            if self._fetching:
                self._fetches_batch()

    def stop(self) -> None:
        """Stop the profiler, which writes the profile. Further calls do nothing."""
        if not self._running:
            return
        self._running = False
        self._has_batch()
        self.end_evaluation()
        atexit.unregister(self.stop)
        while self._watched:
            setattr(*self._watched.pop())
        self._anchors()
        try:
            if self._profiler is not None:
                self._profiler.stop()
        except Exception as error:
            _say(f"the profile could not be written: {error}")

    def _fetches_batch(self) -> None:
        if self._profiler is not None and self._running:
            self._between = self._profiler.annotation(BETWEEN_STEPS)
            self._between.__enter__()

    def _has_batch(self) -> None:
        if self._between is not None:
            self._between.__exit__(None, None, None)
            self._between = None

    def watch_saves(self, owner: Any, *names: str) -> None:
        """Mark each call of these methods of a class, or an object, as a `checkpoint` in the profile until it stops."""
        for name in names:
            method = getattr(owner, name, None)
            if method is not None and self._running:
                self._watched.append((owner, name, method))
                setattr(owner, name, self._annotated(method, "checkpoint"))

    def _annotated(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(method)
        def calling(*arguments: Any, **named: Any) -> Any:
            profiler = self._profiler
            if profiler is None or not self._running:
                return method(*arguments, **named)
            # A call of the loop between two steps is no wait for a batch. Other threads call in the background.
            fetching = self._between is not None and get_ident() == self._thread
            if fetching:
                self._has_batch()
            try:
                with profiler.annotation(name):
                    return method(*arguments, **named)
            finally:
                if fetching:
                    self._fetches_batch()

        return calling

    def _watch_distributed_saves(self) -> None:
        with suppress(ModuleNotFoundError):  # recording.py and anchor.py may have been copied without it
            watched = import_module(f"{_PLACE}checkpoint_calls").watch(self._annotated)
            self._watched += watched

    def _anchors(self) -> None:
        with suppress(OSError):
            for _ in range(ANCHORS):
                _beside.anchor(rank=self._rank, directory=self._first_folder)  # later phases continue the numbers

    def __enter__(self) -> Recording:
        self.start()
        self._fetches_batch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def recording(
    folder: str | os.PathLike[str] = "profile",
    *,
    framework: str = "auto",
    rank: int | None = None,
    steps: int | None = None,
) -> Recording:
    """Profile the training loop inside the `with`, number its steps, and set anchors before and after it.

        with recording("profile") as r:
            for batch in loader:
                with r.step():
                    train(batch)

    The profile goes to `folder/rank<rank>`; under `dxt-replay record` to the folder of the recording. A second
    recording of the process is a phase of the same training, in a folder of its own below the first one's.
    `framework`: torch, tensorflow or jax, by default the imported one.
    `rank`: by default from torch.distributed or the launcher.
    `steps`: number of steps to profile, since profiles of long jobs grow large.
    Raises: ValueError for another framework.
    """
    if framework not in ("auto", *FRAMEWORKS):
        raise ValueError(f"framework is {framework!r}: choose auto, {', '.join(FRAMEWORKS)}")
    rank = _rank() if rank is None else rank
    place = Path(os.environ.get(FOLDER_VARIABLE) or folder, f"rank{rank}" if rank >= 0 else f"process{os.getpid()}")
    return Recording(str(place), _profiler(framework), rank, steps)


def keras_recording(folder: str | os.PathLike[str] = "profile", **choices: Any) -> Any:
    """A Keras callback that works as `recording`, with its arguments.

    model.fit(dataset, callbacks=[keras_recording("profile")])
    """
    keras = sys.modules.get("keras") or import_module("tensorflow").keras
    with suppress(AttributeError):
        choices.setdefault("framework", {"torch": "torch", "jax": "jax"}.get(keras.backend.backend(), "tensorflow"))
    run = recording(folder, **choices)

    class KerasRecording(keras.callbacks.Callback):  # type: ignore[name-defined]
        def on_train_begin(self, logs: Any = None) -> None:
            run.stop()  # an earlier fit() that raised
            run.start()
            run.watch_saves(getattr(keras, "Model", None), "save", "save_weights")

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            run.next_step()

        def on_test_begin(self, logs: Any = None) -> None:
            run.begin_evaluation()

        def on_test_end(self, logs: Any = None) -> None:
            run.end_evaluation()

        def on_train_end(self, logs: Any = None) -> None:
            run.stop()

    return KerasRecording()


def lightning_recording(folder: str | os.PathLike[str] = "profile", **choices: Any) -> Any:
    """A Lightning callback that works as `recording`, with its arguments.

    Trainer(callbacks=[lightning_recording("profile")])
    """
    old = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
    callbacks = import_module("pytorch_lightning.callbacks" if old else "lightning.pytorch.callbacks")
    started: list[Recording] = []

    class LightningRecording(callbacks.Callback):  # type: ignore[name-defined]
        def on_train_start(self, trainer: Any, module: Any) -> None:
            started.append(recording(folder, **{"rank": trainer.global_rank, **choices}))
            started[-1].start()
            started[-1].watch_saves(trainer, "save_checkpoint")

        def on_train_batch_end(self, *arguments: Any, **named: Any) -> None:
            started[-1].next_step()

        def on_validation_start(self, trainer: Any, module: Any) -> None:
            if started:
                started[-1].begin_evaluation()

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            if started:
                started[-1].end_evaluation()

        def on_train_end(self, trainer: Any, module: Any) -> None:
            started[-1].stop()

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            if started:
                started[-1].stop()

    return LightningRecording()


def _folder_of_phase(folder: str) -> str:
    """The folder itself for the first phase, then one of its own below it: profilers overwrite existing files."""
    phase = _phases[folder] = _phases.get(folder, 0) + 1
    return folder if phase == 1 else os.path.join(folder, f"phase{phase}")


def _profiler(framework: str) -> _Profiler:
    """The profiler of a framework; for "auto" that of the first imported one, importing none."""
    if framework != "auto":
        return _PROFILERS[framework](import_module(framework))
    imported = [name for name in FRAMEWORKS if hasattr(sys.modules.get(name), "profiler")]
    if not imported:
        return _NoProfiler()
    named = [name for name in _FIRST_IN_PROGRAM if name in imported and name in _named_by_the_program()]
    chosen, others = (named or imported)[0], [name for name in imported if name != (named or imported)[0]]
    if others and len(named) != 1:
        _say(f"profiling with {chosen}; recording(framework={others[0]!r}) chooses {others[0]}")
    return _PROFILERS[chosen](sys.modules[chosen])


def _named_by_the_program() -> set[str]:
    """Packages of the modules, functions and classes for which the main program has names."""
    values = vars(sys.modules["__main__"]).values() if "__main__" in sys.modules else ()
    found = (getattr(value, "__name__" if isinstance(value, ModuleType) else "__module__", None) for value in values)
    return {name.partition(".")[0] for name in found if isinstance(name, str)}


def _rank() -> int:
    """This process's rank from torch.distributed, else from the launcher, -1 if neither has one."""
    with suppress(AttributeError, RuntimeError, ValueError):
        distributed = sys.modules["torch"].distributed if "torch" in sys.modules else None
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
    return int(_beside.launcher_rank())


def _say(text: str) -> None:
    print(f"dxt-replay: recording: {text}", file=sys.stderr)
