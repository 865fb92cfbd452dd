"""The jobs of `benchmarks.predictions`: small trainings whose input and checkpoints are done as programs do them.

Nothing in a job knows of dxt-replay. What stands for an accelerator sleeps, so that a busy machine decides little.

    python prediction_jobs.py make DATA KIND                 writes the data set of a kind
    python prediction_jobs.py JOB DATA OUTPUT [--steps N]    trains; prints {"loop_s": ..., "steps": ...}
    python prediction_jobs.py public OUTPUT SCRIPT ...       runs a script of others, timed from outside

`loop_s`: seconds from before the first fetch to after the last step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pickle
import queue
import random
import runpy
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

FILE_BYTES = 98_304
SHARD_BYTES, PIECE_BYTES = 4 << 20, 1 << 17
CHUNK_BYTES = 24_576
LMDB_VALUES = 240
COMPUTE_S = 0.025


class Loop:
    """Times a training loop, and ends it after `limit` steps."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit, self.steps = limit, 0
        self.begun = self.ended = 0.0

    def begin(self) -> None:
        """The first fetch begins; later calls change nothing."""
        self.begun = self.begun or time.monotonic()

    def end(self) -> bool:
        """A step has ended; whether it was the last one."""
        self.ended = time.monotonic()
        self.steps += 1
        return self.steps == self.limit

    def over(self, batches: Any) -> Iterator[Any]:
        """The batches, each of which is a step."""
        if self.steps != self.limit:
            iterator = iter(batches)
            self.begin()
            for batch in iterator:
                yield batch
                if self.end():
                    return


# ---- data sets ----


def make(data: Path, kind: str) -> None:
    """Write the data set of a kind into the new folder `data`."""
    data.mkdir(parents=True)
    counts = {"files": (400, FILE_BYTES), "shards": (16, SHARD_BYTES), "chunks": (720, CHUNK_BYTES)}
    if kind in counts:
        count, length = counts[kind]
        for number in range(count):
            (data / f"{number:04d}.bin").write_bytes(os.urandom(length))
    elif kind == "compressed":
        for number in range(480):
            pixels = os.urandom(1 << 18).translate(bytes(value % 16 for value in range(256)))
            (data / f"{number:04d}.z").write_bytes(zlib.compress(pixels, 1))
    elif kind == "images":
        for number in range(160):
            place = data / ("train" if number < 144 else "val") / f"class{number % 4}"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{number:04d}.ppm").write_bytes(b"P6 256 256 255\n" + os.urandom(3 << 16))
    elif kind == "lmdb":
        import lmdb

        with lmdb.open(str(data / "lmdb"), map_size=1 << 28) as made, made.begin(write=True) as values:
            for number in range(LMDB_VALUES):
                values.put(b"%06d" % number, os.urandom(30_000))
    else:
        _make_arrays(data, kind)
    os.sync()


def _make_arrays(data: Path, kind: str) -> None:
    import numpy as np

    generator = np.random.default_rng(5)
    if kind == "tokens":
        for name, count in (("train", 48 << 20), ("val", 2 << 20)):
            (data / f"{name}.bin").write_bytes(generator.integers(0, 256, count, dtype=np.uint16).tobytes())
        (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 256}))
        return
    for number in range(360):
        image = generator.random((3, 64, 96), dtype=np.float32)
        if kind == "npz":
            np.savez(data / f"{number:04d}.npz", image=image, label=number % 10)
        else:
            np.save(data / f"{number:04d}.npy", image)


# ---- PyTorch ----


def _learner(compute_s: float = COMPUTE_S, steps_each: int = 1) -> Callable[[Any], None]:
    """A training step: gradients of a batch, a step of the optimizer each `steps_each` batches, the accelerator."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = 0

    def learn(batch: Any) -> None:
        nonlocal seen
        model(batch.reshape(len(batch), -1)[:, :64].float()).square().mean().backward()
        time.sleep(compute_s)
        seen += 1
        if seen % steps_each == 0:
            optimizer.step()
            optimizer.zero_grad()

    return learn


def _tensor(content: bytes) -> Any:
    import torch

    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _read(path: Path) -> Any:
    return _tensor(path.read_bytes())


def _load_npz(path: Path) -> Any:
    import numpy as np
    import torch

    with np.load(path) as found:
        return torch.from_numpy(found["image"])


def _decompress(path: Path) -> Any:
    return _tensor(zlib.decompress(path.read_bytes()))


def _read_chunks_in_thread(path: Path) -> Any:
    """Three chunks of a sample, each read by another thread of the worker, one after the other."""
    number = 3 * int(path.stem)

    async def read() -> list[bytes]:
        return [await asyncio.to_thread(path.with_name(f"{number + i:04d}.bin").read_bytes) for i in range(3)]

    return _tensor(b"".join(asyncio.run(read())))


class Files:
    """A map-style data set of files."""

    def __init__(self, paths: list[Path], load: Callable[[Path], Any] = _read) -> None:
        self.paths, self.load = paths, load

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Any:
        return self.load(self.paths[number])


def _loader(dataset: Any, batch: int, workers: int = 2, **choices: Any) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(dataset, batch_size=batch, num_workers=workers, **choices)


def _save(state: Any, path: Path) -> None:
    import torch

    torch.save(state, path)


def npz_validation(loop: Loop, data: Path, output: Path) -> None:
    """New workers for each epoch and each validation, np.load of archives, torch.save after each epoch."""
    paths = sorted(data.iterdir())
    train, learn = _loader(Files(paths[:200], _load_npz), 5, shuffle=True), _learner()
    valid = _loader(Files(paths[200:240], _load_npz), 8)
    for epoch in range(2):
        for batch in loop.over(train):
            learn(batch)
        for batch in valid:
            batch.float().mean().item()
        _save({"epoch": epoch}, output / f"{epoch}.pt")


def evaluated_within(loop: Loop, data: Path, output: Path) -> None:
    """An evaluation without workers every 20 steps, while the workers of the training read ahead; then torch.save."""
    paths, learn = sorted(data.iterdir()), _learner()
    valid = _loader(Files(paths[360:]), 20, 0)
    for number, batch in enumerate(loop.over(_loader(Files(paths[:360]), 6, shuffle=True)), 1):
        learn(batch)
        if number % 20 == 10:  # not after the last step, with which the loop ends
            for each in valid:
                each.float().mean().item()
            _save({"step": number}, output / "last.pt")


def _stream(base: type, samples: Callable[[list[Path]], Iterator[bytes]], paths: list[Path]) -> Any:
    class Stream(base):  # type: ignore[misc,valid-type,unused-ignore]
        def __iter__(self) -> Iterator[Any]:
            from torch.utils.data import get_worker_info

            worker = get_worker_info()
            yield from map(_tensor, samples(paths[worker.id :: worker.num_workers]))

    return Stream()


def _shuffled(paths: list[Path]) -> Iterator[bytes]:
    """The pieces of the shards in turn, through a shuffle buffer."""
    generator, held = random.Random(1), []
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while content := file.read(PIECE_BYTES):
                held.append(content)
                if len(held) > 48:
                    yield held.pop(generator.randrange(len(held)))
    generator.shuffle(held)
    yield from held


def _read_ahead(paths: list[Path]) -> Iterator[bytes]:
    """The pieces of the shards; four threads read up to 16 of them ahead."""

    def read(path: Path, offset: int) -> bytes:
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            return file.read(PIECE_BYTES)

    places = ((path, offset) for path in paths for offset in range(0, SHARD_BYTES, PIECE_BYTES))
    with ThreadPoolExecutor(4) as pool:
        ahead = deque(pool.submit(read, *place) for place in islice(places, 16))
        while ahead:
            yield ahead.popleft().result()
            ahead.extend(pool.submit(read, *place) for place in islice(places, 1))


def _streamed(loop: Loop, data: Path, samples: Callable[[list[Path]], Iterator[bytes]]) -> None:
    from torch.utils.data import IterableDataset

    learn = _learner()
    for batch in loop.over(_loader(_stream(IterableDataset, samples, sorted(data.iterdir())), 8)):
        learn(batch)


def shuffle_buffer(loop: Loop, data: Path, output: Path) -> None:
    """An iterable data set of shards with a shuffle buffer."""
    _streamed(loop, data, _shuffled)


def read_ahead(loop: Loop, data: Path, output: Path) -> None:
    """An iterable data set whose workers read ahead with threads."""
    _streamed(loop, data, _read_ahead)


def chunk_threads(loop: Loop, data: Path, output: Path) -> None:
    """Samples of three chunk files, read by threads of a worker, one after the other."""
    learn = _learner()
    paths = sorted(data.iterdir())[: len(list(data.iterdir())) // 3]
    for batch in loop.over(_loader(Files(paths, _read_chunks_in_thread), 6, shuffle=True)):
        learn(batch)


def spawned_images(loop: Loop, data: Path, output: Path) -> None:
    """Workers by spawn, which decode on the processor."""
    learn, files = _learner(), Files(sorted(data.iterdir()), _decompress)
    for batch in loop.over(_loader(files, 8, shuffle=True, multiprocessing_context="spawn")):
        learn(batch)


def accumulation(loop: Loop, data: Path, output: Path) -> None:
    """A step of the optimizer for every four batches."""
    learn = _learner(steps_each=4)
    for _ in range(2):
        for batch in loop.over(_loader(Files(sorted(data.iterdir())), 10, shuffle=True)):
            learn(batch)


def reads_in_step(loop: Loop, data: Path, output: Path) -> None:
    """No loader: each step reads its own files."""
    import torch

    learn, paths = _learner(), sorted(data.iterdir())
    for start in loop.over(range(0, 320, 4)):
        learn(torch.stack([_read(path) for path in paths[start : start + 4]]))


def mapped_tokens(loop: Loop, data: Path, output: Path) -> None:
    """Random windows of a mapped file."""
    import numpy as np
    import torch

    learn, generator = _learner(), np.random.default_rng(3)
    tokens = np.memmap(data / "train.bin", dtype=np.uint16, mode="r")
    for _ in loop.over(range(80)):
        starts = generator.integers(0, len(tokens) - 1024, 8)
        learn(torch.stack([torch.from_numpy(tokens[start : start + 1024].astype(np.int64)) for start in starts]))


def prefetch_thread(loop: Loop, data: Path, output: Path) -> None:
    """A thread of the main process reads up to two batches ahead."""
    import torch

    paths, ready, learn = sorted(data.iterdir()), queue.Queue[Any](2), _learner()

    def read() -> None:
        for start in range(0, 320, 4):
            ready.put(torch.stack([_read(path) for path in paths[start : start + 4]]))
        ready.put(None)

    def batches() -> Iterator[Any]:
        threading.Thread(target=read, daemon=True).start()
        while (batch := ready.get()) is not None:
            yield batch

    for batch in loop.over(batches()):
        learn(batch)


def checkpoint_blocking(loop: Loop, data: Path, output: Path) -> None:
    """torch.save of 12 MB every 20 steps, before the next step."""
    import torch

    learn, state = _learner(), {"weights": torch.rand(3_000_000)}
    for number, batch in enumerate(loop.over(_loader(Files(sorted(data.iterdir())), 4, 1)), 1):
        learn(batch)
        if number % 20 == 0:
            _save(state, output / f"{number}.pt")


def checkpoint_thread(loop: Loop, data: Path, output: Path) -> None:
    """A thread writes 12 MB every 20 steps; a save waits until the one before it is written."""
    import torch

    learn, state = _learner(), {"weights": torch.rand(3_000_000)}
    writing = threading.Thread()
    for number, batch in enumerate(loop.over(_loader(Files(sorted(data.iterdir())), 4, 1)), 1):
        learn(batch)
        if number % 20 == 0:
            copied = {name: value.clone() for name, value in state.items()}
            if writing.ident:
                writing.join()
            writing = threading.Thread(target=_save, args=(copied, output / f"{number}.pt"))
            writing.start()


def lightning_validation(loop: Loop, data: Path, output: Path) -> None:
    """Lightning: persistent workers of training and of validation, a checkpoint after each of two epochs."""
    import logging

    import lightning
    import torch

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(64, 8)

        def training_step(self, batch: Any, number: int) -> Any:
            time.sleep(COMPUTE_S)
            return self.layer(batch[:, :64].float()).square().mean()

        def validation_step(self, batch: Any, number: int) -> None:
            self.log("loss", self.layer(batch[:, :64].float()).square().mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Timed(lightning.Callback):
        def on_train_start(self, *_: Any) -> None:
            loop.begin()

        def on_train_batch_end(self, *_: Any) -> None:
            loop.end()

    trainer = lightning.Trainer(
        max_epochs=2,
        max_steps=loop.limit or -1,
        accelerator="cpu",
        callbacks=[Timed()],
        default_root_dir=output,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    paths = sorted(data.iterdir())
    train = _loader(Files(paths[:336]), 8, shuffle=True, persistent_workers=True)
    trainer.fit(Module(), train, _loader(Files(paths[336:]), 16, 1, persistent_workers=True))


# ---- Grain, Keras ----


def grain_threads(loop: Loop, data: Path, output: Path) -> None:
    """Grain: threads read arrays ahead of a JAX loop."""
    import grain
    import jax
    import numpy as np

    files = Files(sorted(data.iterdir()), np.load)
    options = grain.ReadOptions(num_threads=3, prefetch_buffer_size=32)
    batches = grain.MapDataset.source(files).seed(7).shuffle().repeat(2).to_iter_dataset(options).batch(8)
    learn = jax.jit(lambda weights, batch: weights - 0.01 * batch.reshape(len(batch), -1)[:, :64].mean(0))
    weights = learn(np.zeros(64), np.zeros((8, 64)))
    for batch in loop.over(batches):
        weights = learn(weights, batch).block_until_ready()
        time.sleep(COMPUTE_S)


def keras_records(loop: Loop, data: Path, output: Path) -> None:
    """Keras: tf.data interleaves records of fixed length."""
    import tensorflow as tf

    class Timed(tf.keras.callbacks.Callback):  # type: ignore[misc,name-defined,unused-ignore]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            loop.begin()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            time.sleep(COMPUTE_S)
            loop.end()

    def decode(record: Any) -> Any:
        return tf.cast(tf.io.decode_raw(record, tf.uint8)[:64], tf.float32), tf.zeros(())

    def records(path: Any) -> Any:
        return tf.data.FixedLengthRecordDataset(path, CHUNK_BYTES)

    paths = tf.data.Dataset.from_tensor_slices([str(path) for path in sorted(data.iterdir())])
    batches = paths.interleave(records, cycle_length=2, num_parallel_calls=2).map(decode).batch(9).prefetch(2)
    model = tf.keras.Sequential([tf.keras.Input((64,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(batches, verbose=0, callbacks=[Timed()], steps_per_epoch=loop.limit)


def futures_ahead(loop: Loop, data: Path, output: Path) -> None:
    """Two threads of the main process make whole batches, three of them ahead."""
    import torch

    paths, learn = sorted(data.iterdir()), _learner()

    def one(start: int) -> Any:
        return torch.stack([_read(path) for path in paths[start : start + 4]])

    def batches() -> Iterator[Any]:
        starts = iter(range(0, len(paths), 4))
        with ThreadPoolExecutor(2) as pool:
            ahead = deque(pool.submit(one, start) for start in islice(starts, 3))
            while ahead:
                batch = ahead.popleft().result()
                ahead.extend(pool.submit(one, start) for start in islice(starts, 1))
                yield batch

    for batch in loop.over(batches()):
        learn(batch)


def nodes(loop: Loop, data: Path, output: Path) -> None:
    """torchdata.nodes: two threads map in order, another one has two batches ready."""
    import torch
    import torchdata.nodes as tn

    learn, node = _learner(), tn.IterableWrapper(sorted(data.iterdir()))
    node = tn.ParallelMapper(node, map_fn=_read, num_workers=2, method="thread", in_order=True)
    for batch in loop.over(tn.Loader(tn.Prefetcher(tn.Batcher(node, batch_size=5), prefetch_factor=2))):
        learn(torch.stack(list(batch)))


class Values(Files):
    """The values of an LMDB environment, which each worker opens."""

    def __init__(self, place: Path) -> None:
        super().__init__([place] * LMDB_VALUES)
        self.open: Any = None

    def __getitem__(self, number: int) -> Any:
        import lmdb

        self.open = self.open or lmdb.open(str(self.paths[0]), readonly=True, lock=False, readahead=False).begin()
        return _tensor(self.open.get(b"%06d" % number))


def lmdb_workers(loop: Loop, data: Path, output: Path) -> None:
    """Workers read an LMDB environment, which is a mapped file."""
    learn = _learner()
    for batch in loop.over(_loader(Values(data / "lmdb"), 6, shuffle=True)):
        learn(batch)


def _spawned_rank(rank: int, data: str, output: str) -> None:
    import torch
    from torch.distributed import destroy_process_group, init_process_group
    from torch.utils.data.distributed import DistributedSampler

    init_process_group("gloo", init_method=f"file://{output}/ranks", rank=rank, world_size=2)
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    files, loop = Files(sorted(Path(data).iterdir())), Loop()
    for batch in loop.over(_loader(files, 4, 1, sampler=DistributedSampler(files))):
        model(batch.reshape(len(batch), -1)[:, :64].float()).square().mean().backward()
        time.sleep(COMPUTE_S)
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        (Path(output) / "loop.json").write_text(json.dumps([loop.begun, loop.ended, loop.steps]))
    destroy_process_group()


def spawned_ranks(loop: Loop, data: Path, output: Path) -> None:
    """Two ranks that the program spawns train with DistributedDataParallel."""
    from torch.multiprocessing import start_processes

    start_processes(_spawned_rank, args=(str(data), str(output)), nprocs=2, start_method="spawn")
    loop.begun, loop.ended, loop.steps = json.loads((output / "loop.json").read_text())


JOBS: dict[str, tuple[str, str, Callable[[Loop, Path, Path], None]]] = {
    "npz_validation": ("npz", "latency", npz_validation),
    "shuffle_buffer": ("shards", "bytes", shuffle_buffer),
    "lightning_validation": ("files", "latency", lightning_validation),
    "chunk_threads": ("chunks", "requests", chunk_threads),
    "read_ahead": ("shards", "bytes", read_ahead),
    "grain_threads": ("npy", "latency", grain_threads),
    "reads_in_step": ("files", "requests", reads_in_step),
    "evaluated_within": ("files", "requests", evaluated_within),
    "spawned_images": ("compressed", "bytes", spawned_images),
    "mapped_tokens": ("tokens", "latency", mapped_tokens),
    "prefetch_thread": ("files", "requests", prefetch_thread),
    "futures_ahead": ("files", "requests", futures_ahead),
    "nodes": ("files", "requests", nodes),
    "lmdb_workers": ("lmdb", "latency", lmdb_workers),
    "spawned_ranks": ("files", "requests", spawned_ranks),
    "accumulation": ("files", "latency", accumulation),
    "checkpoint_blocking": ("files", "bytes", checkpoint_blocking),
    "checkpoint_thread": ("files", "bytes", checkpoint_thread),
    "keras_records": ("chunks", "requests", keras_records),
}
"""For each job the kind of its data set, the kind of slow storage, and what it does."""


def run_public(loop: Loop, script: Path, arguments: list[str]) -> None:
    """Run a script of others as it is. Its loop begins as its first loader, else its first step of an optimizer, does,
    and ends with its last step."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
    from torch.utils.data import DataLoader

    begin_loader = DataLoader.__iter__

    def begun(loader: Any) -> Any:
        loop.begin()
        return begin_loader(loader)

    DataLoader.__iter__ = begun  # type: ignore[method-assign,unused-ignore]
    register_optimizer_step_pre_hook(lambda *_: loop.begin())
    register_optimizer_step_post_hook(lambda *_: loop.end() and None)
    torch.set_num_threads(1)
    os.chdir(script.parent)
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


def main() -> int:
    """Make a data set or train; the last printed line of a training is its result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("job", choices=("make", "public", *JOBS))
    parser.add_argument("data", type=Path, help="the data set; of a public script: its output")
    parser.add_argument("output", help="a kind of data set, a folder, or a public script")
    parser.add_argument("--steps", type=int)
    chosen, rest = parser.parse_known_args()
    if chosen.job == "make":
        make(chosen.data, chosen.output)
        return 0
    loop = Loop(chosen.steps)
    if chosen.job == "public":
        run_public(loop, Path(chosen.output), rest)
    else:
        JOBS[chosen.job][2](loop, chosen.data, Path(chosen.output))
    print(json.dumps({"loop_s": round(loop.ended - loop.begun, 3), "steps": loop.steps}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
