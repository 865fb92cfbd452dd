# mypy: ignore-errors
"""Small training loops for `recording_cost`, which know nothing of dxt-replay: `python recording_jobs.py JOB [STEPS]`.

Prints one JSON line: wall time of the loop, processor time of its thread (Keras: of its process, since other threads
fetch there) and of the workers, steps. With `--timed COMMAND...` it runs a command and prints its wall time and the
memory of its largest process. With `JOB DATA STEPS switched`, under `dxt-replay record`, it switches the marks off and
on again from loop to loop. Needs the frameworks of the job, and no other package.
"""

import gc
import itertools
import json
import os
import resource
import sys
import time
from contextlib import nullcontext

BATCH, WIDTH, PASSES = 4, 1024, 3
LOOPS = 5
"""Loops of a process. The one with least processor time counts: other programs and compilation only add to it."""
ITEM_BYTES = 64 << 10


def read(path, item):
    """One item: a piece of the data, as a tensor would be made of it."""
    import numpy as np

    with open(path, "rb", buffering=0) as file:
        raw = os.pread(file.fileno(), ITEM_BYTES, item % 64 * ITEM_BYTES)
    return np.frombuffer(raw, np.uint8)[:WIDTH].astype(np.float32) / 255


class Files:
    """A data set of both PyTorch and grain."""

    def __init__(self, path, length, *, named=False):
        self.path, self.length, self.named = path, length, named

    def __len__(self):
        return self.length

    def __getitem__(self, item):
        found = read(self.path, item)
        return {"x": found, "labels": item % 10} if self.named else (found, item % 10)


def layers():
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = (WIDTH, 256, 256, 10)
    parts = [torch.nn.Linear(one, two) for one, two in itertools.pairwise(sizes)]
    return torch.nn.Sequential(parts[0], torch.nn.ReLU(), parts[1], torch.nn.ReLU(), parts[2])


def torch_job(path, steps, workers=0, persistent=False):
    import torch

    model = layers()
    if "RANK" in os.environ:
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    data = Files(path, steps // PASSES * BATCH)
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH, num_workers=workers, persistent_workers=persistent)

    def run():
        for _ in range(PASSES):
            for x, y in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()

    return run


def lightning_job(path, steps):
    import logging
    import warnings

    import lightning
    import torch

    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = layers()

        def training_step(self, batch, _):
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-3, momentum=0.9)

    loader = torch.utils.data.DataLoader(Files(path, steps // PASSES * BATCH), batch_size=BATCH)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(max_epochs=PASSES, accelerator="cpu", **quiet)
    return lambda: trainer.fit(Net(), loader)


def hf_job(path, steps):
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

    class Toy(PreTrainedModel):
        config_class = PretrainedConfig

        def __init__(self, config):
            super().__init__(config)
            self.net = layers()

        def forward(self, x, labels):
            logits = self.net(x)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    choices = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    arguments = TrainingArguments(
        output_dir=os.path.dirname(path), max_steps=steps, per_device_train_batch_size=BATCH, **choices
    )
    data = Files(path, steps * BATCH, named=True)
    return Trainer(model=Toy(PretrainedConfig()), args=arguments, train_dataset=data).train


def keras_job(path, steps):
    import tensorflow as tf

    def load(item):
        found = tf.io.decode_raw(tf.io.read_file(path), tf.uint8)[:WIDTH]
        return tf.cast(found, tf.float32) / 255, item % 10

    data = tf.data.Dataset.range(steps // PASSES * BATCH).map(load, num_parallel_calls=2).batch(BATCH).prefetch(2)
    dense = [tf.keras.layers.Dense(256, "relu"), tf.keras.layers.Dense(256, "relu"), tf.keras.layers.Dense(10)]
    model = tf.keras.Sequential([tf.keras.layers.Input((WIDTH,)), *dense])
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return lambda: model.fit(data, epochs=PASSES, verbose=0)


def jax_job(path, steps, grain=False):
    import jax
    import jax.numpy as jnp
    import numpy as np

    keys = jax.random.split(jax.random.key(0), 3)
    sizes = (WIDTH, 256, 256, 10)
    weights = [jax.random.normal(key, size) * 0.03 for key, size in zip(keys, itertools.pairwise(sizes), strict=True)]

    def loss(weights, x, y):
        for each in weights[:-1]:
            x = jax.nn.relu(x @ each)
        return -jnp.mean(jax.nn.log_softmax(x @ weights[-1])[jnp.arange(BATCH), y])

    train = jax.jit(lambda w, x, y: [a - 1e-3 * b for a, b in zip(w, jax.grad(loss)(w, x, y), strict=True)])
    data, step = Files(path, steps * BATCH), nullcontext
    if grain:
        import grain.python as g

        order = g.IndexSampler(steps * BATCH, g.NoSharding(), shuffle=False, num_epochs=1)
        batches = g.DataLoader(data_source=data, sampler=order, operations=[g.Batch(BATCH)], worker_count=0)
    else:
        items = (range(i, i + BATCH) for i in range(0, steps * BATCH, BATCH))
        batches = ([np.stack(parts) for parts in zip(*(data[i] for i in each), strict=True)] for each in items)
        if os.environ.get("DXT_RECORDING_PROFILE"):  # such a loop hides its batches, so it has the line itself
            import dxt_replay_marks

            if dxt_replay_marks._folder or dxt_replay_marks._file is None:  # else this loop is one without marks
                recorder = dxt_replay_marks.recording()
                recorder.start()
                step = recorder.step

    def run():
        now = weights
        for x, y in batches:
            with step():
                now = train(now, x, y)
        jax.block_until_ready(now)

    return run


JOBS = {
    "torch": (torch_job, {}),
    "torch-2": (torch_job, {"workers": 2}),
    "torch-4": (torch_job, {"workers": 4}),
    "torch-2-persistent": (torch_job, {"workers": 2, "persistent": True}),
    "torch-4-persistent": (torch_job, {"workers": 4, "persistent": True}),
    "lightning": (lightning_job, {}),
    "hf": (hf_job, {}),
    "keras": (keras_job, {}),
    "jax": (jax_job, {}),
    "grain": (jax_job, {"grain": True}),
    "torchrun": (torch_job, {}),
}
NEEDS = {"lightning": "lightning", "hf": "transformers", "keras": "tensorflow", "jax": "jax", "grain": "grain"}
"""Package of each job; PyTorch of the others."""


SWITCHED = 12
"""Loops without marks, and as many with them."""


def measured(name, path, steps):
    """Run a job, and return what its loops took: the least of each."""
    loops = [_measured_loop(name, path, steps) for _ in range(LOOPS)]
    return {key: min(each[key] for each in loops) for key in loops[0]} | {"steps": steps // PASSES * PASSES}


def _measured_loop(name, path, steps):
    make, choices = JOBS[name]
    run = make(path, steps, **choices)
    clock = time.process_time if name == "keras" else time.thread_time
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu, wall = clock(), time.monotonic()
    run()
    cpu, wall = clock() - cpu, time.monotonic() - wall
    del run
    gc.collect()  # ends persistent workers
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    workers = after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime
    return {"wall_s": wall, "cpu_s": cpu, "workers_cpu_s": workers}


def switched(name, path, steps):
    """Processor time of loops without marks and with them, in turn in one process."""
    _measured_loop(name, path, steps)
    import dxt_replay_marks as marks

    folder, off, on = marks._folder, [], []
    for number in range(2 * SWITCHED):
        marked = number % 4 in (1, 2)  # off, on, on, off
        marks._folder = folder if marked else ""
        (on if marked else off).append(_measured_loop(name, path, steps)["cpu_s"])
    marks._folder = folder
    return {"off": off, "on": on}


def timed(command):
    """Run a command, and return its wall time and the memory of its largest process."""
    began = time.monotonic()
    child = os.posix_spawn(command[0], command, os.environ)
    _, status, used = os.wait4(child, 0)
    return {"program_s": time.monotonic() - began, "largest_mib": used.ru_maxrss / 1024, "status": status}


if __name__ == "__main__":
    if sys.argv[1] == "--timed":
        print("RESULT", json.dumps(timed(sys.argv[2:])), flush=True)
    else:
        found = (switched if sys.argv[4:] else measured)(sys.argv[1], sys.argv[2], int(sys.argv[3]))
        if os.environ.get("RANK", "0") == "0":
            print("RESULT", json.dumps(found), flush=True)
