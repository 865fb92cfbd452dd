"""The helper in a training loop, under stand-ins of the frameworks that note what they are asked for."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

from dxt_replay.profiler_merge import anchor as anchor_module
from dxt_replay.profiler_merge import recording as module
from dxt_replay.profiler_merge.recording import FOLDER_VARIABLE, keras_recording, lightning_recording, recording
from tests.places import PACKAGE


class Framework:
    """Calls of a profiler in their order, as the frameworks' modules make them."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def say(self, text: str) -> None:
        self.calls.append(text)

    @contextlib.contextmanager
    def annotation(self, name: str, **values: int | str):
        values.setdefault("step_num", name)
        if name == anchor_module.ANNOTATION:
            self.say("anchor")
            yield
            return
        if name == module.BETWEEN_STEPS:
            self.say("fetch")
            yield
            self.say("fetched")
            return
        self.say(f"begin {values['step_num']}")
        yield
        self.say(f"end {values['step_num']}")

    def torch(self) -> types.ModuleType:
        torch = types.ModuleType("torch")
        run = types.SimpleNamespace(
            start=lambda: self.say("start"), step=lambda: self.say("step"), stop=lambda: self.say("stop")
        )
        torch.profiler = types.SimpleNamespace(
            schedule=lambda **times: times,
            tensorboard_trace_handler=lambda folder, use_gzip: self.say(f"into {folder}"),
            profile=lambda **options: run,
            record_function=lambda text: self.annotation(text.partition("#")[0]),
        )
        return torch

    def tensorflow(self) -> types.ModuleType:
        tensorflow = types.ModuleType("tensorflow")
        tensorflow.profiler = types.SimpleNamespace(
            experimental=types.SimpleNamespace(
                ProfilerOptions=dict,
                start=lambda folder, options: self.say("start"),
                stop=lambda: self.say("stop"),
                Trace=self.annotation,
            )
        )
        return tensorflow

    def jax(self) -> types.ModuleType:
        jax = types.ModuleType("jax")
        jax.profiler = types.SimpleNamespace(
            start_trace=lambda folder: self.say("start"),
            stop_trace=lambda: self.say("stop"),
            StepTraceAnnotation=self.annotation,
            TraceAnnotation=self.annotation,
        )
        return jax


ANCHORS = ["anchor"] * 3


@pytest.fixture
def framework(monkeypatch: pytest.MonkeyPatch) -> Framework:
    """No framework is imported, no launcher has given a rank, and no anchor file is open."""
    anchor_module._files.reset()
    for name in (*anchor_module.RANK_VARIABLES, FOLDER_VARIABLE, "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name in ("torch", "tensorflow", "jax", "keras", "lightning", "pytorch_lightning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return Framework()


def train(folder: Path, steps: int = 2, **choices) -> module.Recording:
    with recording(folder, **choices) as r:
        for _ in range(steps):
            with r.step():
                pass
    return r


def test_torch_steps_end_with_the_batch(framework, monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "torch", framework.torch())
    assert train(tmp_path, rank=0).steps == 2
    steps = ["fetch", "fetched", "step", "fetch", "fetched", "step", "fetch", "fetched"]
    assert framework.calls == [f"into {tmp_path}/rank0", "start", *ANCHORS, *steps, *ANCHORS, "stop"]


@pytest.mark.parametrize("name", ["tensorflow", "jax"])
def test_an_annotated_step_holds_the_fetch_of_its_batch(framework, monkeypatch, tmp_path, name) -> None:
    """The one after the last step ends when the profiler has stopped, and is in no profile."""
    monkeypatch.setitem(sys.modules, name, getattr(framework, name)())
    train(tmp_path)
    fetch = ["fetch", "fetched"]
    steps = ["begin 0", *fetch, "end 0", "begin 1", *fetch, "end 1", "begin 2", *fetch]
    assert framework.calls == ["start", *ANCHORS, *steps, *ANCHORS, "stop", "end 2"]


def test_the_input_of_a_jax_program_is_profiled_by_tensorflow(framework, monkeypatch, tmp_path) -> None:
    places: list[str] = []
    monkeypatch.setitem(sys.modules, "jax", framework.jax())
    tensorflow = framework.tensorflow()
    tensorflow.profiler.experimental.start = lambda folder, options: places.append(folder)
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    train(tmp_path, framework="jax", rank=0)
    assert places == [str(tmp_path / "rank0" / module.INPUT_FOLDER)]
    assert framework.calls.count("start") == 1
    assert framework.calls.count("stop") == 2


def test_each_recording_of_a_process_has_a_folder_of_its_own(framework, monkeypatch, tmp_path) -> None:
    """JAX names what it writes by the second: two profiles of one second and folder would be one."""
    places: list[str] = []
    jax = framework.jax()
    jax.profiler.start_trace = places.append
    monkeypatch.setitem(sys.modules, "jax", jax)
    again = train(tmp_path, rank=0)
    train(tmp_path, rank=0)
    with again:
        again.next_step()
    assert again.steps == 1
    assert places == [str(tmp_path / "rank0" / name) for name in ("", "phase2", "phase3")]
    assert [path.parent for path in tmp_path.rglob("dxt-anchor.*")] == [tmp_path / "rank0"]


def test_a_loop_that_does_not_use_step_has_one_mark_between_steps(framework, monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "torch", framework.torch())
    with recording(tmp_path) as r:
        for _ in range(3):
            r.next_step()
    assert framework.calls.count("fetch") == framework.calls.count("fetched") == 1


@pytest.mark.parametrize("name", ["torch", "tensorflow", "jax"])
def test_an_evaluation_is_marked_and_is_no_wait_for_a_batch(framework, monkeypatch, tmp_path, name) -> None:
    monkeypatch.setitem(sys.modules, name, getattr(framework, name)())
    with recording(tmp_path, rank=0) as r:
        with r.step():
            pass
        framework.calls.clear()
        with pytest.raises(ValueError, match="no images"), r.evaluation():
            raise ValueError("no images")
        assert framework.calls == ["fetched", "begin evaluation", "end evaluation", "fetch"]


def test_an_evaluation_without_a_profiler_marks_nothing(framework, tmp_path) -> None:
    with recording(tmp_path) as r:
        with r.evaluation(), r.step():
            pass
        assert r.steps == 1
    with r.evaluation():  # after the end
        pass
    assert framework.calls == []


def test_the_profile_ends_after_so_many_steps(framework, monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "torch", framework.torch())
    assert train(tmp_path, steps=5).steps == 5
    framework.calls.clear()
    with recording(tmp_path, rank=0, steps=2) as r:
        for _ in range(5):
            with r.step():
                pass
    assert framework.calls[-5:] == ["step", *ANCHORS, "stop"]
    assert framework.calls.count("step") == 2


def test_a_loop_that_fails_still_leaves_its_profile(framework, monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "torch", framework.torch())
    with pytest.raises(KeyboardInterrupt), recording(tmp_path) as r, r.step():
        raise KeyboardInterrupt
    assert framework.calls[-1] == "stop"
    assert r.steps == 0


def test_a_profiler_that_fails_does_not_stop_the_training(framework, monkeypatch, tmp_path, capsys) -> None:
    torch = framework.torch()
    torch.profiler.profile = lambda **options: (_ for _ in ()).throw(RuntimeError("a profiler runs already"))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert train(tmp_path).steps == 2
    assert "steps are not marked: a profiler runs already" in capsys.readouterr().err
    assert list(tmp_path.glob("*/dxt-anchor.*.bin"))


def test_without_a_profiler_anchors_are_set_and_it_says_so(framework, tmp_path, capsys) -> None:
    assert train(tmp_path).steps == 2
    assert "anchors are set, steps are not marked" in capsys.readouterr().err
    (file,) = tmp_path.glob("process*/dxt-anchor.*.bin")
    assert file.stat().st_size == 6 * anchor_module.RECORD_BYTES


def test_an_unknown_framework_is_refused(framework) -> None:
    with pytest.raises(ValueError, match="choose auto, torch, tensorflow, jax"):
        recording(framework="mxnet")


@pytest.mark.parametrize(
    ("imported", "named", "chosen"),
    [
        (("tensorflow", "jax"), (), "tensorflow"),  # TensorFlow has imported JAX
        (("tensorflow", "jax"), ("jax",), "jax"),
        (("tensorflow", "jax"), ("jax", "tensorflow"), "jax"),  # its input is tf.data's
        (("torch", "tensorflow"), ("torch",), "torch"),
    ],
)
def test_the_framework_of_the_program_is_chosen(framework, monkeypatch, tmp_path, imported, named, chosen) -> None:
    others = {name: Framework() for name in imported}
    for name, other in others.items():
        monkeypatch.setitem(sys.modules, name, getattr(other, name)())
    program = types.ModuleType("__main__")
    for name in named:
        setattr(program, name, sys.modules[name])
    monkeypatch.setitem(sys.modules, "__main__", program)
    train(tmp_path)
    # TensorFlow's profiler shows tf.data in a program of JAX.
    beside = {"tensorflow"} if chosen == "jax" else set()
    assert {name for name, other in others.items() if "start" in other.calls} - beside == {chosen}


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({"PMI_RANK": "3"}, 3),
        ({"SLURM_PROCID": "2"}, 2),
        ({"SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "5"}, 5),
        ({"PMI_RANK": "1", "RANK": "6", "TORCHELASTIC_RUN_ID": "x"}, 6),
    ],
)
def test_the_rank_is_that_of_the_launcher(framework, monkeypatch, tmp_path, variables, rank) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert recording(tmp_path).folder == str(tmp_path / f"rank{rank}")


def test_the_rank_of_torch_distributed_counts_most(framework, monkeypatch, tmp_path) -> None:
    torch = framework.torch()
    torch.distributed = types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 4
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setenv("RANK", "1")
    assert recording(tmp_path).folder == str(tmp_path / "rank4")


def test_under_record_the_folder_is_that_of_the_recording(framework, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "run"))
    assert recording("elsewhere", rank=0).folder == str(tmp_path / "run" / "rank0")


def test_the_callback_of_keras(framework, monkeypatch, tmp_path) -> None:
    keras = types.ModuleType("keras")
    keras.callbacks = types.SimpleNamespace(Callback=object)
    keras.backend = types.SimpleNamespace(backend=lambda: "tensorflow")
    monkeypatch.setitem(sys.modules, "keras", keras)
    monkeypatch.setitem(sys.modules, "tensorflow", framework.tensorflow())
    callback = keras_recording(tmp_path)
    callback.on_train_begin()
    callback.on_train_batch_end(0)
    callback.on_train_end()
    assert framework.calls == ["start", *ANCHORS, "begin 0", "end 0", "begin 1", *ANCHORS, "stop", "end 1"]


class Model:
    """A model of Keras as far as its callbacks save it."""

    def save(self, path: str) -> str:
        return f"saved {path}"


def keras_run(framework, monkeypatch, tmp_path):
    keras = types.ModuleType("keras")
    keras.callbacks = types.SimpleNamespace(Callback=object)
    keras.backend = types.SimpleNamespace(backend=lambda: "tensorflow")
    keras.Model = Model
    monkeypatch.setitem(sys.modules, "keras", keras)
    monkeypatch.setitem(sys.modules, "tensorflow", framework.tensorflow())
    return keras_recording(tmp_path)


def test_what_keras_saves_by_itself_is_a_checkpoint_until_the_training_ends(framework, monkeypatch, tmp_path) -> None:
    callback = keras_run(framework, monkeypatch, tmp_path)
    callback.on_train_begin()
    assert Model().save("a.keras") == "saved a.keras"
    callback.on_train_end()
    saved = ["begin checkpoint", "end checkpoint"]
    assert framework.calls == ["start", *ANCHORS, "begin 0", *saved, *ANCHORS, "stop", "end 0"]
    assert not hasattr(Model.save, "__wrapped__")


def test_a_fit_that_raises_leaves_its_profile_when_the_program_ends(framework, monkeypatch, tmp_path) -> None:
    at_exit: list = []
    monkeypatch.setattr(module.atexit, "register", at_exit.append)
    monkeypatch.setattr(module.atexit, "unregister", at_exit.remove)
    callback = keras_run(framework, monkeypatch, tmp_path)
    callback.on_train_begin()
    (at_end,) = at_exit
    at_end()
    assert framework.calls[-2:] == ["stop", "end 0"]
    assert at_exit == []


def test_what_lightning_saves_by_itself_is_a_checkpoint(framework, monkeypatch, tmp_path) -> None:
    callbacks = types.ModuleType("lightning.pytorch.callbacks")
    callbacks.Callback = object
    for name in ("lightning", "lightning.pytorch"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, callbacks.__name__, callbacks)
    monkeypatch.setitem(sys.modules, "torch", framework.torch())
    saved: list = []
    trainer = types.SimpleNamespace(global_rank=0, save_checkpoint=lambda path: saved.append(path))
    callback = lightning_recording(tmp_path)
    callback.on_train_start(trainer, None)
    trainer.save_checkpoint("epoch0.ckpt")
    callback.on_train_end(trainer, None)
    assert saved == ["epoch0.ckpt"]
    assert framework.calls[5:7] == ["begin checkpoint", "end checkpoint"]


def test_the_callback_of_lightning(framework, monkeypatch, tmp_path) -> None:
    callbacks = types.ModuleType("lightning.pytorch.callbacks")
    callbacks.Callback = object
    for name in ("lightning", "lightning.pytorch"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, callbacks.__name__, callbacks)
    monkeypatch.setitem(sys.modules, "torch", framework.torch())
    callback, trainer = lightning_recording(tmp_path), types.SimpleNamespace(global_rank=2)
    callback.on_exception(trainer, None, ValueError())  # before the training: nothing to stop
    callback.on_train_start(trainer, None)
    callback.on_train_batch_end(trainer, None, None, None, 0)
    callback.on_exception(trainer, None, ValueError())
    callback.on_train_end(trainer, None)
    assert framework.calls == [f"into {tmp_path}/rank2", "start", *ANCHORS, "step", *ANCHORS, "stop"]


def test_two_copied_files_are_enough(tmp_path) -> None:
    """In an interpreter without any package, as the job's may be."""
    for name in ("recording.py", "anchor.py"):
        shutil.copy(PACKAGE / "profiler_merge" / name, tmp_path)
    program = "from recording import recording\nwith recording('p') as r:\n    with r.step(): pass\nprint(r.steps)"
    (tmp_path / "job.py").write_text(program, encoding="utf-8")
    done = subprocess.run([sys.executable, "-S", "job.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert list(tmp_path.glob("p/*/dxt-anchor.*.bin"))
