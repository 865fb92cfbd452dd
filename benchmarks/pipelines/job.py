"""The jobs of the benchmark: each trains a small model on an input pipeline that programs really use.

It runs under an interpreter with TensorFlow, JAX or PyTorch, and with dxt-replay for `recording`. By itself it trains
without a profiler, which is the truth that a prediction is held against; with `--recording` as the README says.

    python job.py make DATA KIND                              writes the data set of a kind
    python job.py train DATA PIPELINE OUTPUT [--recording]    prints {"loop_s": ..., "steps": ...}

`loop_s`: seconds from the first batch's begin to the last one's end. Keras says both by its callbacks; a loop of its
own begins before it makes its iterator.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import json
import os
import queue
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

RECORD_BYTES = 20_000
FILE_RECORDS = 300
SAMPLE_BYTES = 98_304
BATCH_SAMPLES = 16
"""Samples of `numpy` and `torch` batches."""


_M_MMAP_THRESHOLD, _MAPPED_BYTES = -3, 1 << 20
"""Option of mallopt(3), and the size from which each allocation is mapped separately."""


class Loop:
    """Times a training loop, and records it on request."""

    def __init__(self, recorded: bool) -> None:
        self._recorded = recorded
        self._begun = self._ended = 0.0
        self._steps = 0

    def around(self, **choices: Any) -> AbstractContextManager[Any]:
        """`recording()`, or a context that does nothing."""
        if not self._recorded:
            return nullcontext(_Unrecorded())
        from dxt_replay import recording

        return recording(**choices)

    def keras_callbacks(self) -> list[Any]:
        """The callbacks that time `fit`, behind `keras_recording`."""
        import tensorflow as tf

        loop = self

        class Timed(tf.keras.callbacks.Callback):  # type: ignore[misc,name-defined,unused-ignore]
            def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
                loop.begin()

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                loop.end()

        if not self._recorded:
            return [Timed()]
        from dxt_replay import keras_recording

        return [keras_recording(), Timed()]

    def begin(self) -> None:
        """The first batch begins; later calls change nothing."""
        self._begun = self._begun or time.monotonic()

    def end(self) -> None:
        """A step has ended."""
        self._ended = time.monotonic()
        self._steps += 1

    def as_json(self) -> str:
        """The output of the job."""
        return json.dumps({"loop_s": self._ended - self._begun, "steps": self._steps})


class _Unrecorded:
    def step(self) -> AbstractContextManager[None]:
        return nullcontext()


def _map_tensors() -> None:
    """Map each tensor separately.

    By default glibc takes them from its heap, where a profiler's events come to lie between them. Memory then grows by
    a step's tensors in each step, and a recorded job took twice as long."""
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


# ---- data sets ----


def make(data: Path, kind: str) -> None:
    """Write the data set of a kind into the new folder `data`, all on the device."""
    data.mkdir(parents=True)
    if kind == "records":
        for name, count in [(f"train-{n}.tfrecord", 8) for n in range(8)] + [(f"eval-{n}.tfrecord", 2) for n in (0, 1)]:
            _write_records(data / name, FILE_RECORDS if count == 8 else FILE_RECORDS // 2)
    elif kind == "samples":
        for number in range(480):
            (data / f"sample-{number:04d}.bin").write_bytes(os.urandom(SAMPLE_BYTES))
    elif kind == "shards":
        for number in range(8):
            (data / f"shard-{number}.bin").write_bytes(os.urandom(SAMPLE_BYTES * 60))
    else:
        for number in range(6):
            _write_tar(data / f"shard-{number}.tar", 80)
    os.sync()


def _write_records(path: Path, count: int) -> None:
    import tensorflow as tf

    feature, train = tf.train.Feature, tf.train
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in range(count):
            content = feature(bytes_list=train.BytesList(value=[os.urandom(RECORD_BYTES)]))
            label = feature(int64_list=train.Int64List(value=[number % 2]))
            example = train.Example(features=train.Features(feature={"x": content, "y": label}))
            writer.write(example.SerializeToString())


def _write_tar(path: Path, count: int) -> None:
    with tarfile.open(path, "w") as tar:
        for number in range(count):
            for suffix, content in (("bin", os.urandom(SAMPLE_BYTES)), ("cls", str(number % 2).encode())):
                member = tarfile.TarInfo(f"{number:06d}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def _records(data: Path, count: int = 8) -> list[str]:
    return [str(data / f"train-{number}.tfrecord") for number in range(count)]


def _samples(data: Path, count: int) -> list[str]:
    return [str(data / f"sample-{number:04d}.bin") for number in range(count)]


# ---- TensorFlow ----


def _tensorflow() -> Any:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    return tf


def _parse(record: Any) -> Any:
    import tensorflow as tf

    features = {"x": tf.io.FixedLenFeature([], tf.string), "y": tf.io.FixedLenFeature([], tf.int64)}
    example = tf.io.parse_single_example(record, features)
    return _decode(example["x"]), example["y"]


def _parse_batch(records: Any) -> Any:
    import tensorflow as tf

    features = {"x": tf.io.FixedLenFeature([], tf.string), "y": tf.io.FixedLenFeature([], tf.int64)}
    examples = tf.io.parse_example(records, features)
    content = tf.io.decode_raw(examples["x"], tf.uint8, fixed_length=RECORD_BYTES)
    return tf.cast(tf.ensure_shape(content, (None, RECORD_BYTES)), tf.float32) / 255, examples["y"]


def _decode(content: Any) -> Any:
    import tensorflow as tf

    return (
        tf.cast(tf.ensure_shape(tf.io.decode_raw(content, tf.uint8)[:RECORD_BYTES], (RECORD_BYTES,)), tf.float32) / 255
    )


def _read_image(path: Any) -> Any:
    import tensorflow as tf

    return _decode(tf.io.read_file(path)), tf.strings.length(path) % 2


def _model(units: int) -> Any:
    tf = _tensorflow()
    layers = tf.keras.layers
    inputs = tf.keras.Input((RECORD_BYTES,))
    model = tf.keras.Sequential([inputs, layers.Dense(units, "relu"), layers.Dense(2)])
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _fit(loop: Loop, dataset: Any, output: Path, *, units: int = 64, **choices: Any) -> None:
    import tensorflow as tf

    saved = tf.keras.callbacks.ModelCheckpoint(str(output / "model.weights.h5"), save_weights_only=True)
    _model(units).fit(dataset, verbose=0, callbacks=[*loop.keras_callbacks(), saved], **choices)


def keras_shuffle(loop: Loop, data: Path, output: Path) -> None:
    tf = _tensorflow()
    records = tf.data.TFRecordDataset(_records(data), num_parallel_reads=2)
    dataset = records.map(_parse, num_parallel_calls=2).shuffle(200).batch(32).prefetch(2)
    _fit(loop, dataset, output, epochs=2)


def keras_plain(loop: Loop, data: Path, output: Path) -> None:
    dataset = _tensorflow().data.TFRecordDataset(_records(data)).map(_parse).batch(40)
    _fit(loop, dataset, output, epochs=2)


def keras_interleave(loop: Loop, data: Path, output: Path) -> None:
    tf = _tensorflow()
    files = tf.data.Dataset.from_tensor_slices(_records(data))
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=2, deterministic=False)
    dataset = records.map(_parse, num_parallel_calls=tf.data.AUTOTUNE).batch(32).prefetch(tf.data.AUTOTUNE)
    _fit(loop, dataset, output, epochs=2)


def keras_cache(loop: Loop, data: Path, output: Path) -> None:
    records = _tensorflow().data.TFRecordDataset(_records(data, 6))
    _fit(loop, records.map(_parse).cache().shuffle(400).batch(32), output, epochs=4)


def keras_repeat(loop: Loop, data: Path, output: Path) -> None:
    records = _tensorflow().data.TFRecordDataset(_records(data), num_parallel_reads=2)
    dataset = records.map(_parse, num_parallel_calls=2).shuffle(200).repeat().batch(32).prefetch(2)
    _fit(loop, dataset, output, epochs=3, steps_per_epoch=55)


def keras_validation(loop: Loop, data: Path, output: Path) -> None:
    tf = _tensorflow()
    files = [str(data / f"eval-{number}.tfrecord") for number in (0, 1)]
    records = tf.data.TFRecordDataset(_records(data, 6), num_parallel_reads=2)
    dataset = records.map(_parse, num_parallel_calls=2).shuffle(200).batch(32).prefetch(2)
    evaluated = tf.data.TFRecordDataset(files).map(_parse).batch(50).prefetch(1)
    _fit(loop, dataset, output, epochs=3, validation_data=evaluated)


def keras_images(loop: Loop, data: Path, output: Path) -> None:
    paths = _samples(data, 480)
    files = _tensorflow().data.Dataset.from_tensor_slices(paths).shuffle(len(paths))
    _fit(loop, files.map(_read_image, num_parallel_calls=4).batch(16).prefetch(2), output, units=128, epochs=2)


def keras_shuffle_serial(loop: Loop, data: Path, output: Path) -> None:
    dataset = _tensorflow().data.TFRecordDataset(_records(data)).map(_parse).shuffle(300).batch(32)
    _fit(loop, dataset, output, epochs=2)


def keras_buffered(loop: Loop, data: Path, output: Path) -> None:
    records = _tensorflow().data.TFRecordDataset(_records(data, 6), buffer_size=1 << 16)
    _fit(loop, records.batch(32).map(_parse_batch).prefetch(2), output, epochs=2)


def _train_function(units: int) -> Callable[[Any, Any], Any]:
    """A step of a loop of its own, with tf.GradientTape."""
    tf = _tensorflow()
    model, optimizer = _model(units), tf.keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(reduce_retracing=True)
    def train(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(inputs, training=True))
        slopes = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(slopes, model.trainable_variables, strict=True))
        return loss

    return train


def loop_repeat(loop: Loop, data: Path, output: Path) -> None:
    del output
    records = _tensorflow().data.TFRecordDataset(_records(data), num_parallel_reads=2)
    dataset = records.map(_parse, num_parallel_calls=2).shuffle(200).repeat(2).batch(32).prefetch(2)
    train = _train_function(64)
    with loop.around() as r:
        loop.begin()
        for inputs, labels in dataset:
            with r.step():
                float(train(inputs, labels))
                loop.end()


def loop_interleave(loop: Loop, data: Path, output: Path) -> None:
    del output
    tf = _tensorflow()
    files = tf.data.Dataset.list_files(str(data / "train-*.tfrecord"), shuffle=True)
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=2)
    dataset = records.map(_parse, num_parallel_calls=2).batch(32).prefetch(1)
    train = _train_function(128)
    with loop.around() as r:
        loop.begin()
        for _ in range(2):
            for inputs, labels in dataset:
                with r.step():
                    float(train(inputs, labels))
                    loop.end()


# ---- JAX ----


def _jax_step(features: int, units: int) -> Callable[[Any, Any], float]:
    """One compiled step of stochastic gradient descent; returns when its loss is computed."""
    import jax
    import jax.numpy as jnp

    weights = [jnp.full((features, units), 0.001, jnp.float32), jnp.full((units, 2), 0.01, jnp.float32)]

    def loss_of(parameters: Any, inputs: Any, labels: Any) -> Any:
        logits = jnp.maximum(inputs @ parameters[0], 0) @ parameters[1]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1))

    @jax.jit
    def update(parameters: Any, inputs: Any, labels: Any) -> Any:
        loss, slopes = jax.value_and_grad(loss_of)(parameters, inputs, labels)
        return [each - 0.01 * slope for each, slope in zip(parameters, slopes, strict=True)], loss

    def train(inputs: Any, labels: Any) -> float:
        weights[:], loss = update(weights, inputs, labels)
        return float(loss)

    return train


def jax_tfdata(loop: Loop, data: Path, output: Path) -> None:
    del output
    records = _tensorflow().data.TFRecordDataset(_records(data), num_parallel_reads=2)
    dataset = records.map(_parse, num_parallel_calls=2).shuffle(200).batch(32, drop_remainder=True).prefetch(2)
    train = _jax_step(RECORD_BYTES, 64)
    with loop.around(framework="jax") as r:
        loop.begin()
        for _ in range(2):
            for inputs, labels in dataset.as_numpy_iterator():
                with r.step():
                    train(inputs, labels)
                    loop.end()


def _numpy_batches(data: Path) -> Iterator[tuple[Any, Any]]:
    """Two epochs of whole files, each in another order, read on request."""
    import numpy as np

    paths = [Path(path) for path in _samples(data, 192)]
    for epoch in range(2):
        order = np.random.default_rng(epoch).permutation(len(paths))
        for start in range(0, len(paths), BATCH_SAMPLES):
            contents = [np.frombuffer(paths[number].read_bytes(), np.uint8) for number in order[start:][:BATCH_SAMPLES]]
            yield np.stack(contents).astype(np.float32) / 255, np.arange(BATCH_SAMPLES) % 2


def _ahead(batches: Iterator[Any], depth: int) -> Iterator[Any]:
    """The batches; a thread makes up to `depth` of them ahead."""
    made: queue.Queue[Any] = queue.Queue(depth)

    def make_all() -> None:
        for batch in batches:
            made.put(batch)
        made.put(None)

    threading.Thread(target=make_all, daemon=True).start()
    while (batch := made.get()) is not None:
        yield batch


def _train_jax(loop: Loop, batches: Iterator[Any], units: int) -> None:
    train = _jax_step(SAMPLE_BYTES, units)
    with loop.around() as r:
        loop.begin()
        for inputs, labels in batches:
            with r.step():
                train(inputs, labels)
                loop.end()


def jax_numpy(loop: Loop, data: Path, output: Path) -> None:
    del output
    _train_jax(loop, _numpy_batches(data), 64)


def jax_thread(loop: Loop, data: Path, output: Path) -> None:
    del output
    _train_jax(loop, _ahead(_numpy_batches(data), 2), 64)


# ---- PyTorch ----


def _train_torch(loop: Loop, loader: Any, units: int, epochs: int = 2) -> None:
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(SAMPLE_BYTES, units), torch.nn.ReLU(), torch.nn.Linear(units, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with loop.around() as r:
        loop.begin()
        for _ in range(epochs):
            for batch in loader:
                with r.step():
                    optimizer.zero_grad()
                    loss = torch.nn.functional.cross_entropy(model(batch), torch.arange(len(batch)) % 2)
                    loss.backward()
                    optimizer.step()
                    loss.item()
                    loop.end()


def _tensor(content: bytes) -> Any:
    import torch

    return torch.frombuffer(bytearray(content), dtype=torch.uint8).float() / 255


def _files_loader(data: Path, count: int, workers: int) -> Any:
    from torch.utils.data import DataLoader, Dataset

    paths = [Path(path) for path in _samples(data, count)]

    class Files(Dataset):  # type: ignore[misc,type-arg,unused-ignore]
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, number: int) -> Any:
            return _tensor(paths[number].read_bytes())

    return DataLoader(Files(), batch_size=BATCH_SAMPLES, shuffle=True, num_workers=workers)


def _stream_loader(paths: list[Path], samples: Callable[[Path], Iterator[bytes]]) -> Any:
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class Stream(IterableDataset):  # type: ignore[misc,type-arg,unused-ignore]
        def __iter__(self) -> Iterator[Any]:
            worker = get_worker_info()
            for path in paths[worker.id :: worker.num_workers] if worker else paths:
                yield from map(_tensor, samples(path))

    return DataLoader(Stream(), batch_size=BATCH_SAMPLES, num_workers=2)


def torch_files(loop: Loop, data: Path, output: Path) -> None:
    del output
    _train_torch(loop, _files_loader(data, 320, 2), 48)


def torch_serial(loop: Loop, data: Path, output: Path) -> None:
    del output
    _train_torch(loop, _files_loader(data, 192, 0), 128)


def torch_shards(loop: Loop, data: Path, output: Path) -> None:
    del output

    def samples(path: Path) -> Iterator[bytes]:
        with path.open("rb", buffering=0) as file:
            while content := file.read(SAMPLE_BYTES):
                yield content

    _train_torch(loop, _stream_loader(sorted(data.glob("shard-*.bin")), samples), 32)


def torch_tar(loop: Loop, data: Path, output: Path) -> None:
    del output

    def samples(path: Path) -> Iterator[bytes]:
        with path.open("rb") as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                file = tar.extractfile(member)
                if member.name.endswith(".bin") and file:
                    yield file.read()

    _train_torch(loop, _stream_loader(sorted(data.glob("shard-*.tar")), samples), 32)


PIPELINES: dict[str, tuple[str, Callable[[Loop, Path, Path], None]]] = {
    "keras_shuffle": ("records", keras_shuffle),
    "keras_plain": ("records", keras_plain),
    "keras_interleave": ("records", keras_interleave),
    "keras_cache": ("records", keras_cache),
    "keras_repeat": ("records", keras_repeat),
    "keras_validation": ("records", keras_validation),
    "keras_images": ("samples", keras_images),
    "keras_shuffle_serial": ("records", keras_shuffle_serial),
    "keras_buffered": ("records", keras_buffered),
    "loop_repeat": ("records", loop_repeat),
    "loop_interleave": ("records", loop_interleave),
    "jax_tfdata": ("records", jax_tfdata),
    "jax_numpy": ("samples", jax_numpy),
    "jax_thread": ("samples", jax_thread),
    "torch_files": ("samples", torch_files),
    "torch_serial": ("samples", torch_serial),
    "torch_shards": ("shards", torch_shards),
    "torch_tar": ("tars", torch_tar),
}
"""For each pipeline the kind of its data set, and its job."""


def main() -> int:
    """Make a data set or train; the last printed line of a training is its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("make", "train"))
    parser.add_argument("data", type=Path)
    parser.add_argument("what", help="a kind of data set, or a pipeline")
    parser.add_argument("output", type=Path, nargs="?", default=Path())
    parser.add_argument("--recording", action="store_true")
    chosen = parser.parse_args()
    if chosen.action == "make":
        make(chosen.data, chosen.what)
        return 0
    chosen.output.mkdir(parents=True, exist_ok=True)
    _map_tensors()
    loop = Loop(chosen.recording)
    PIPELINES[chosen.what][1](loop, chosen.data, chosen.output)
    print(loop.as_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
