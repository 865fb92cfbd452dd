"""What `recording` writes in a job, under stand-ins of the frameworks; recordings of real ones are in test_marks.py."""

import os
import resource
import shutil
import subprocess
import sys
from textwrap import dedent

import numpy as np
import pytest

import dxt_replay
from dxt_replay.profiler_merge import recording as module
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


def job(folder, text, *, before="", status=0, **limits):
    """Run a program beside a copy of recording.py and stand-ins of frameworks, in Python without any package.

    before: what runs before `recording` is imported. Returns the files of marks, and what the job printed as error."""
    shutil.copy(PACKAGE / "profiler_merge" / "recording.py", folder)
    for name, content in STAND_INS.items():
        place = folder / f"{name}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(dedent(content), encoding="utf-8")
    (folder / "job.py").write_text(dedent(before) + dedent(PROGRAM) + dedent(text), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name not in module.RANK_VARIABLES}
    command = [sys.executable, "-S", "job.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment, **limits)
    assert done.returncode == status, done.stderr
    return sorted(folder.glob("p/*.marks")), done.stderr


def count(path, name):
    """The records of a kind."""
    return int((read_process(path).rows["kind"] == getattr(module, name.upper())).sum())


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


OF_GPU = {
    # Of each 60 ms the loop waits 40 for its batch, and in the first 25 of these the GPU works, 45 ms in all. The loop
    # begins with a wait in which the GPU has nothing to do, and ends 20 ms after the last batch.
    "train(20, 40, 45, 20); sleep(100)": {
        "steps": 20, "gpu_behind_steps": 20, "compute_at_most": True, "loop_s": 1.2,
        "compute_pct": 100 * (19 * 45 + 20) / 1200, "input_wait_pct": 100 * (40 + 19 * 15) / 1200,
    },
    # The GPU works 1 of 12 ms, and its timing events lie 10 ms apart: it had to wait for the program.
    "train(20, 2, 1, 10); sleep(100)": {
        "steps": 20, "gpu_behind_steps": 0, "compute_at_most": True, "compute_pct": 100 * 10 / 12,
    },
    # A job that is killed: the times of the last steps, as many as must not be waited for, were not read.
    "train(5, 2, 1, 10); os.kill(os.getpid(), 9)": {"steps": 5, "compute_pct": 100 * 10 / 12},
    # An evaluation has no part in the use of the GPU.
    """train(10, 10, 8, 6)
    step, optimizer.step = optimizer.step, lambda: None
    train(20, 1, 30, 30)
    optimizer.step = step
    train(10, 10, 8, 6); sleep(100)
    """: {
        "steps": 20, "evaluations": 1, "evaluation_s": 0.62, "compute_pct": 100 * (8 * 18 + 6 * 2) / 320,
    },
}  # fmt: skip


@pytest.mark.parametrize("text", OF_GPU)
def test_times_of_a_gpu(tmp_path, text):
    """Of the marks of a job, as a summary shows them."""
    killed = "kill" in text
    ((path,), _) = job(tmp_path, f"{GPU}    {text}", before=CLOCK, status=-9 if killed else 0)
    capture = dxt_replay.open_capture(merge((), find_profiles(tmp_path / "p"), tmp_path / "a.capture").capture)
    summary = dxt_replay.summary(capture)
    assert {name: getattr(summary.loop, name) for name in OF_GPU[text]} == pytest.approx(OF_GPU[text])
    assert not killed or count(path, "device") == 3
    if summary.loop.gpu_behind_steps == 0 and not killed:
        rows = [row for section in summary_sections(summary, None) for row in section.rows]
        used = f"at most {100 * 10 / 12:.1f} % of the training, with the gaps between the kernels of a step"
        assert {("compute", used), ("GPU had work left", "at the end of 0 steps")} <= set(rows)


FORK = "if os.fork() == 0:\n    {}; os._exit(0)\nos.wait()"
FETCHES = """
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
step = Function(OwnedIterator._next_internal)
"""
WHOLE = {"take_end": [6], "optimizer": [6], "pass_end": [1]}


# What runs, its exit status, and how many records of a kind each process has.
@pytest.mark.parametrize(
    ("text", "status", "found"),
    [
        # Marks are whole whatever ends the process.
        ("run(6); os._exit(7)", 7, WHOLE),
        ("run(6); os.kill(os.getpid(), signal.SIGTERM)", -15, WHOLE),
        ("run(6); os.kill(os.getpid(), signal.SIGKILL)", -9, WHOLE),
        ("run(6); raise RuntimeError", 1, WHOLE),
        # A pass ends where it is asked in vain, not where it is left.
        ("run(5); run(3, train=False); run(5)", 0, {"take_end": [13], "optimizer": [10], "pass_end": [3]}),
        ("loader = data._SingleProcessDataLoaderIter(range(9))\n"
         "for number in range(4): data._SingleProcessDataLoaderIter.__next__(loader); optimizer.step()", 0,
         {"pass": [1], "take_end": [4], "optimizer": [4], "pass_end": [0]}),
        # A forked process has marks of its own, and leaves the GPU of its parent alone.
        ("run(2)\n" + FORK.format("run(3)"), 0, {"take_end": [2, 3]}),
        (GPU + "    train(3, 2, 1, 10)\n    import recording\n"
         "    if os.fork() == 0: mark(0); recording._ends(); os._exit(0)\n    os.wait()", 0, {"device": [0, 3]}),
        # Where files cannot be mapped, records are written.
        ("import recording; recording._mapped = lambda name, at: None; recording._file.views.clear(); run(4)", 0,
         {"take_end": [4]}),
        # A program that closes all descriptors, as a daemon does, and opens its data under their numbers.
        ("""
        run(5000)
        os.closerange(3, 256)
        files = [os.open(f"data{number}", os.O_RDWR | os.O_CREAT) for number in range(20)]
        from recording import anchors
        anchors(); run(5000); anchors()
        sys.exit(any(os.fstat(each).st_size for each in files) or len(os.listdir("/proc/self/fd")) > 25)
        """, 0, {"take_end": [10_000]}),
        # Steps and phases of the program's own. After the limit nothing is marked.
        ("""
        with recording("p") as r:
            for _ in range(3):
                with r.step(): pass
            with r.evaluation(), r.checkpoint(): pass
        """, 0, {"step": [3], "step_end": [3], "evaluation": [1], "checkpoint_end": [1]}),
        ("""
        with recording("p", steps=2) as r:
            for _ in range(5):
                with r.step(): pass
        """, 0, {"step_end": [2]}),
        # A fetch of a compiled function that finds no more data has no end.
        (FETCHES + "batches = OwnedIterator(range(3))\ntry:\n while True: step(batches)\nexcept StopIteration: pass",
         0, {"fetch": [4], "fetch_end": [3]}),
    ],
)  # fmt: skip
def test_records_of_each_process(tmp_path, text, status, found):
    paths, _ = job(tmp_path, text, before=CLOCK if "train(" in text else "", status=status)
    assert {name: sorted(count(path, name) for path in paths) for name in found} == found


def test_a_failure_ends_the_marks_and_not_the_job_and_is_said_once(tmp_path):
    """A full disk, and a name that cannot be a folder."""
    limits = module.HEADER_BYTES + module.SEGMENT, -1
    of_disk = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits)}
    ((path,), said) = job(tmp_path, "run(5000); print('done')", **of_disk)
    assert said.count("no further marks") == 1
    assert int(read_process(path).rows["kind"].astype(bool).sum()) > 2000
    (other := tmp_path / "other").mkdir()
    (other / "p").touch()
    paths, said = job(other, "run(3)")
    assert (paths, said.count("no further marks")) == ([], 1)


def test_beyond_the_bound_steps_are_sums(tmp_path):
    """As after 64 MiB of marks: here the bound is one segment, and a minute has passed with each sum."""
    text = "import recording; recording.WHOLE_BYTES = 0; recording._MINUTE_NS = 0; run(9000)"
    ((path,), _) = job(tmp_path, text)
    rows = read_process(path).rows
    sums = rows[rows["kind"] == module.SUM]
    assert count(path, "take") < 4000
    assert count(path, "take_end") + int(sums["number"].sum()) == 9000
    assert (sums["cpu"] >= 0).all()


def test_fetches_of_a_compiled_function_are_read_after_each_call(tmp_path):
    """The process is killed in its fourth call. The truth: a fetch of 20 ms, and then others of 30 ms."""
    text = """
def data():
    for wait in (0.02, 0.03, 0.03): yield time.sleep(wait)
    os.kill(os.getpid(), signal.SIGKILL)
batches = OwnedIterator(data())
while True: step(batches)
"""
    ((path,), _) = job(tmp_path, f"import time\n{FETCHES}{text}", status=-9)
    loop = training_loop(read_process(path))
    waits = (loop.end - loop.begin) / 1e6
    assert (waits > np.array([20, 30, 30]) - 1).all()
    assert waits.sum() < 500
    assert len(np.unique(read_process(path).rows["thread"])) == 1


def test_the_last_fetches_of_a_call_are_kept(tmp_path):
    ((path,), _) = job(tmp_path, f"{FETCHES}batches = OwnedIterator(range(999)); step(batches, 2); step(batches, 500)")
    rows = read_process(path).rows
    assert rows["number"][rows["kind"] == module.FETCH].tolist() == [0, 1, *range(502 - module._Fetches.PLACES, 502)]


def test_an_anchor_is_known_from_both_sides(tmp_path):
    ((path,), _) = job(tmp_path, "run(1)")
    slots, begin, end, _ = read_process(path).anchors.T
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
        ({"PMI_RANK": "x"}, -1),
    ],
)
def test_the_rank_is_that_of_the_launcher(monkeypatch, variables, rank):
    for name in (*module.RANK_VARIABLES, "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert module.launcher_rank() == rank
    with pytest.raises(ValueError, match="choose auto, torch, jax, tensorflow"):
        module.recording(framework="mxnet")
