"""What `recording` writes in a job, under stand-ins of the frameworks; recordings of real ones are in test_marks.py."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

import dxt_replay
from dxt_replay.profiler_merge import recording as module
from dxt_replay.profiler_merge.analysis.steady_loop import SteadyLoop
from dxt_replay.profiler_merge.given_files import find_profiles
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.profiler_merge.profiles.marks import MARK, read_process, training_loop
from dxt_replay.replay.show.summary import summary_sections
from tests.places import PACKAGE

DATALOADER = """
    class _BaseDataLoaderIter:
        _num_workers = 0
        def __init__(self, loader): self._left, self._num_yielded = iter(loader), 0
        def __next__(self):
            found = next(self._left)
            self._num_yielded += 1
            return found
    class _SingleProcessDataLoaderIter(_BaseDataLoaderIter):
        def __init__(self, loader): super().__init__(loader)
    class _MultiProcessingDataLoaderIter(_BaseDataLoaderIter):
        def _reset(self, loader, first_iter=False): pass
"""
OPTIMIZER = """
    hooks = []
    def register_optimizer_step_post_hook(hook): hooks.append(hook)
    def step():
        for hook in hooks: hook(None, (), {})
"""
TENSORFLOW = """
    import array, time
    from contextlib import contextmanager, nullcontext
    from types import SimpleNamespace
    graph, int32, float64 = None, "i", "d"
    class Tensor:
        def __mod__(self, by): return operator(lambda: [each % by for each in self.value])
    def of(tensor): return tensor.value if isinstance(tensor, Tensor) else tensor
    def operator(compute):
        made = Tensor()
        def run(): made.value = compute()
        run() if graph is None else graph.append(run)
        return made
    def zeros(count, kind): return array.array(kind, [0] * count)
    def constant(value, kind): return value
    def executing_eagerly(): return graph is None
    def timestamp(): return operator(time.time)
    def reshape(tensor, shape): return operator(lambda: [of(tensor)])
    def slice(tensor, begin, count): return operator(lambda: list(of(tensor))[:1])
    def update(x, i, v): return operator(lambda: x.__setitem__(of(i)[0], of(v)[0]))
    def add(x, i, v): return operator(lambda: x.__setitem__(0, x[0] + 1) or x)
    def identity(tensor): return tensor
    @contextmanager
    def init_scope():
        global graph
        outer, graph = graph, None
        yield
        graph = outer
    device = control_dependencies = lambda given: nullcontext()
    raw_ops = SimpleNamespace(InplaceUpdate=update, InplaceAdd=add)
    nest = SimpleNamespace(flatten=lambda found, **_: [found], map_structure=lambda make, found, **_: make(found))
"""
ITERATOR = """
    import tensorflow
    class OwnedIterator:
        def __init__(self, data): self.left = iter(data)
        def _next_internal(self): return tensorflow.operator(lambda: next(self.left))
"""
FUNCTION = """
    import tensorflow
    class Function:
        def __init__(self, body): self.body, self.trace = body, None
        def __call__(self, given, times=1):
            if self.trace is None:
                tensorflow.graph = self.trace = []
                self.body(given)
                tensorflow.graph = None
            for run in self.trace * times: run()
"""
PROGRAM = """
    import os, signal, sys
    from recording import recording, mark, HOOKS
    r = recording("p").start() or None
    import torch.utils.data.dataloader as data
    import torch.optim.optimizer as optimizer
    def run(batches, train=True):
        loader = data._SingleProcessDataLoaderIter(range(batches))
        while True:
            try: data._SingleProcessDataLoaderIter.__next__(loader)
            except StopIteration: return
            if train: optimizer.step()
"""
STAND_INS = {
    "torch/utils/data/dataloader": DATALOADER,
    "torch/optim/optimizer": OPTIMIZER,
    "tensorflow/__init__": TENSORFLOW,
    "tensorflow/python/data/ops/iterator_ops": ITERATOR,
    "tensorflow/python/eager/polymorphic_function/polymorphic_function": FUNCTION,
}


def job(folder: Path, text: str, *, before: str = "", status: int = 0, **limits: object) -> list[Path]:
    """Run a program beside a copy of recording.py and stand-ins of frameworks, in Python without any package.

    before: what runs before `recording` is imported."""
    shutil.copy(PACKAGE / "profiler_merge" / "recording.py", folder)
    for name, content in STAND_INS.items():
        place = folder / f"{name}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(dedent(content), encoding="utf-8")
    (folder / "job.py").write_text(dedent(before) + dedent(PROGRAM) + dedent(text), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name not in module.RANK_VARIABLES}
    command = [sys.executable, "-S", "job.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment, **limits)  # type: ignore[call-overload]
    assert done.returncode == status, done.stderr
    (folder / "stderr").write_text(done.stderr, encoding="utf-8")
    return sorted(folder.glob("p/*.marks"))


CLOCK = """
    import time
    ticks = [1_795_000_000_000_000_000]
    now = time.monotonic_ns = time.time_ns = lambda: ticks[0]
    def sleep(ms): ticks[0] += int(ms * 1e6)
"""
GPU = """
    import torch
    class Event:
        def __init__(self, enable_timing): assert enable_timing
        def record(self): self.at = max(now(), torch.cuda.done)
        def query(self):
            assert os.getpid() == torch.cuda.pid, "a forked process has no device"
            return now() >= self.at
        def elapsed_time(self, end):
            assert end.query(), "a time that is waited for"
            return (end.at - self.at) / 1e6
    class Gpu:
        done = 0
        Event = Event
        pid = os.getpid()
        is_initialized = classmethod(lambda cls: os.getpid() == cls.pid)
        def current_stream(self): return self
        def query(self): return now() >= self.done
        def kernel(self, ms): self.done = max(now(), self.done) + int(ms * 1e6)
    torch.cuda = Gpu()
    def train(batches, fetch, kernel, host):
        def data():
            for each in range(batches):
                sleep(fetch)
                yield each
        loader = data_loader._SingleProcessDataLoaderIter(data())
        while True:
            try: data_loader._SingleProcessDataLoaderIter.__next__(loader)
            except StopIteration: return
            torch.cuda.kernel(kernel)
            sleep(host)
            optimizer.step()
    data_loader = data
"""


def loop_of(folder: Path) -> SteadyLoop:
    """The training loop of the marks of a job."""
    found = dxt_replay.summary(merge((), find_profiles(folder / "p"), folder / "a.capture").capture)
    assert found.loop is not None
    return found.loop


def test_a_gpu_that_works_while_the_loop_waits_for_its_batch(tmp_path: Path) -> None:
    """Of each 60 ms the loop waits 40 for its batch, and in the first 25 of these the GPU works, 45 ms in all.

    The loop begins with a wait in which the GPU has nothing to do, and ends 20 ms after the last batch."""
    job(tmp_path, GPU + "    train(20, 40, 45, 20); sleep(100)", before=CLOCK)
    loop = loop_of(tmp_path)
    assert (loop.steps, loop.gpu_behind_steps, loop.compute_at_most) == (20, 20, True)
    assert loop.loop_s == pytest.approx(1.2)
    assert loop.compute_pct == pytest.approx(100 * (19 * 45 + 20) / 1200)
    assert loop.input_wait_pct == pytest.approx(100 * (40 + 19 * 15) / 1200)


def test_gaps_between_kernels_make_the_time_of_a_gpu_an_upper_bound(tmp_path: Path) -> None:
    """The GPU works 1 of 12 ms, and its timing events lie 10 ms apart: it had to wait for the program."""
    job(tmp_path, GPU + "    train(20, 2, 1, 10); sleep(100)", before=CLOCK)
    loop = loop_of(tmp_path)
    assert (loop.steps, loop.gpu_behind_steps, loop.compute_at_most) == (20, 0, True)
    assert loop.compute_pct == pytest.approx(100 * 10 / 12)
    used = f"at most {100 * 10 / 12:.1f} % of the training, with the gaps between the kernels of a step"
    capture = dxt_replay.open_capture(tmp_path / "a.capture")
    rows = [row for section in summary_sections(dxt_replay.summary(capture), None) for row in section.rows]
    assert ("compute", used) in rows
    assert ("GPU had work left", "at the end of 0 steps") in rows


def test_a_step_whose_time_on_the_gpu_was_not_read_counts_whole(tmp_path: Path) -> None:
    """The last steps of a job that is killed: as many as must not be waited for."""
    text = "    train(5, 2, 1, 10); os.kill(os.getpid(), signal.SIGKILL)"
    (path,) = job(tmp_path, GPU + text, before=CLOCK, status=-signal.SIGKILL)
    assert counts(path)["device"] == 3
    assert loop_of(tmp_path).compute_pct == pytest.approx(100 * 10 / 12)


def test_a_forked_process_leaves_the_gpu_of_its_parent_alone(tmp_path: Path) -> None:
    text = """
    train(3, 2, 1, 10)
    import recording
    if os.fork() == 0:
        mark(0)
        recording._ends()
        os._exit(0)
    os.wait()
    """
    devices = sorted(counts(path)["device"] for path in job(tmp_path, GPU + text, before=CLOCK))
    assert devices == [0, 3]


def test_an_evaluation_has_no_part_in_the_use_of_the_gpu(tmp_path: Path) -> None:
    text = """
    train(10, 10, 8, 6)
    step, optimizer.step = optimizer.step, lambda: None
    train(20, 1, 30, 30)
    optimizer.step = step
    train(10, 10, 8, 6); sleep(100)
    """
    job(tmp_path, GPU + text, before=CLOCK)
    loop = loop_of(tmp_path)
    assert (loop.steps, loop.evaluations, loop.evaluation_s) == (20, 1, pytest.approx(0.62))
    assert loop.compute_pct == pytest.approx(100 * (8 * 18 + 6 * 2) / 320)


def counts(path: Path) -> Counter[str]:
    return Counter(module.KINDS[kind] for kind in read_process(path).rows["kind"])


def test_a_loop_without_a_line_in_it(tmp_path: Path) -> None:
    (path,) = job(tmp_path, "run(5); run(3, train=False); run(5)")
    loop = training_loop(read_process(path))
    assert (len(loop.begin), len(loop.steps)) == (13, 10)
    assert len(loop.evaluations) == 1
    assert loop.workers.tolist() == [0] * 13
    assert (loop.steps[1:, 0] >= loop.steps[:-1, 1]).all()


def test_loops_without_an_optimizer_and_loops_that_are_left(tmp_path: Path) -> None:
    """Without an optimizer every batch is a step; a loop that is left has its last step."""
    (path,) = job(tmp_path, "run(5, train=False); run(3, train=False)")
    loop = training_loop(read_process(path))
    assert (len(loop.steps), len(loop.evaluations)) == (8, 0)
    path.unlink()
    text = """
        loader = data._SingleProcessDataLoaderIter(range(9))
        for number in range(4):
            data._SingleProcessDataLoaderIter.__next__(loader); optimizer.step()
    """
    (path,) = job(tmp_path, text)
    assert len(training_loop(read_process(path)).steps) == 4


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("os._exit(7)", 7),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("raise RuntimeError", 1),
    ],
)
def test_marks_are_whole_whatever_ends_the_process(tmp_path: Path, end: str, status: int) -> None:
    (path,) = job(tmp_path, f"run(6); {end}", status=status)
    found = counts(path)
    assert (found["take_end"], found["optimizer"], found["pass_end"]) == (6, 6, 1)


def test_a_forked_process_has_marks_of_its_own(tmp_path: Path) -> None:
    one, other = job(tmp_path, "run(2)\nif os.fork() == 0:\n    run(3); os._exit(0)\nos.wait()")
    assert sorted(counts(path)["take_end"] for path in (one, other)) == [2, 3]


def test_a_full_disk_ends_the_marks_and_not_the_job(tmp_path: Path) -> None:
    import resource

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (module.HEADER_BYTES + module.SEGMENT, -1))

    (path,) = job(tmp_path, "run(5000); print('done')", preexec_fn=limit)
    assert "no further marks" in (tmp_path / "stderr").read_text(encoding="utf-8")
    assert int(read_process(path).rows["kind"].astype(bool).sum()) > 2000


def test_a_name_that_cannot_be_a_folder_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("", encoding="utf-8")
    assert job(tmp_path, "run(3)") == []
    assert (tmp_path / "stderr").read_text(encoding="utf-8").count("no further marks") == 1


def test_where_files_cannot_be_mapped_marks_are_written(tmp_path: Path) -> None:
    text = """
        import recording
        recording._mapped = lambda name, at: None
        recording._file.views.clear()
        run(4)
    """
    (path,) = job(tmp_path, text)
    assert counts(path)["take_end"] == 4


def test_no_descriptor_is_kept_that_a_program_may_reuse(tmp_path: Path) -> None:
    """A program that closes all descriptors, as a daemon does, and opens its data under their numbers."""
    text = """
        run(5000)
        os.closerange(3, 256)
        files = [os.open(f"data{number}", os.O_RDWR | os.O_CREAT) for number in range(20)]
        from recording import anchors
        anchors(); run(5000); anchors()
        sys.exit(any(os.fstat(each).st_size for each in files) or len(os.listdir("/proc/self/fd")) > 25)
    """
    (path,) = job(tmp_path, text)
    assert counts(path)["take_end"] == 10_000


def test_beyond_the_bound_steps_are_sums(tmp_path: Path) -> None:
    """As after 64 MiB of marks: here the bound is one segment, and a minute has passed with each sum."""
    text = "import recording; recording.WHOLE_BYTES = 0; recording._MINUTE_NS = 0; run(9000)"
    (path,) = job(tmp_path, text)
    rows = read_process(path).rows
    takes = rows[rows["kind"] == module.TAKE]
    sums = rows[rows["kind"] == module.SUM]
    whole = int((rows["kind"] == module.TAKE_END).sum())
    assert len(takes) < 4000
    assert whole + int(sums["number"].sum()) == 9000
    assert (sums["cpu"] >= 0).all()


def test_explicit_steps_and_phases(tmp_path: Path) -> None:
    text = """
        with recording("p") as r:
            for _ in range(3):
                with r.step(): pass
            with r.evaluation(), r.checkpoint(): pass
        with recording("p", steps=2) as r:  # after the limit nothing is marked
            for _ in range(5):
                with r.step(): pass
    """
    first, second = map(counts, job(tmp_path, text))
    assert [first[name] for name in ("step", "step_end", "evaluation", "checkpoint_end")] == [3, 3, 1, 1]
    assert second["step_end"] == 2


FETCHES = """
    import time
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
    step = Function(OwnedIterator._next_internal)
"""


def test_fetches_of_a_compiled_function_are_read_after_each_call(tmp_path: Path) -> None:
    """The process is killed in its fourth call. The truth: a fetch of 20 ms, and then others of 30 ms."""
    text = """
        def data():
            for wait in (0.02, 0.03, 0.03): yield time.sleep(wait)
            os.kill(os.getpid(), signal.SIGKILL)
        batches = OwnedIterator(data())
        while True: step(batches)
    """
    (path,) = job(tmp_path, dedent(FETCHES) + dedent(text), status=-signal.SIGKILL)
    loop = training_loop(read_process(path))
    waits = (loop.end - loop.begin) / 1e6
    assert (waits > np.array([20, 30, 30]) - 1).all()
    assert waits.sum() < 500
    assert len(np.unique(read_process(path).rows["thread"])) == 1


def test_the_last_fetches_of_a_call_are_kept_and_one_that_finds_no_more_data_has_no_end(tmp_path: Path) -> None:
    text = """
        try:
            batches = OwnedIterator(range(3))
            while True: step(batches)
        except StopIteration: pass
    """
    (path,) = job(tmp_path, dedent(FETCHES) + dedent(text))
    assert (counts(path)["fetch"], counts(path)["fetch_end"]) == (4, 3)
    path.unlink()
    (path,) = job(
        tmp_path, dedent(FETCHES) + "batches = OwnedIterator(range(999)); step(batches, 2); step(batches, 500)"
    )
    rows = read_process(path).rows
    assert rows["number"][rows["kind"] == module.FETCH].tolist() == [0, 1, *range(502 - module._Fetches.PLACES, 502)]


def test_an_anchor_is_known_from_both_sides(tmp_path: Path) -> None:
    (path,) = job(tmp_path, "run(1)")
    process = read_process(path)
    slots, begin, end, _ = process.anchors.T
    assert len(slots) >= module.ANCHORS
    assert (begin <= end).all()
    raw = np.frombuffer(path.read_bytes(), MARK, offset=module.HEADER_BYTES)
    assert (raw["kind"][slots] == module.ANCHOR).all()


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({"PMI_RANK": "3"}, 3),
        ({"SLURM_PROCID": "2"}, 2),
        ({"SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "5"}, 5),
        ({"PMI_RANK": "1", "RANK": "6", "TORCHELASTIC_RUN_ID": "x"}, 6),
    ],
)
def test_the_rank_is_that_of_the_launcher(monkeypatch: pytest.MonkeyPatch, variables: dict, rank: int) -> None:
    for name in (*module.RANK_VARIABLES, "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert module.launcher_rank() == rank
    with pytest.raises(ValueError, match="choose auto, torch, jax, tensorflow"):
        module.recording(framework="mxnet")
