"""The jobs of these recordings: `jobs.py JOB`, in a folder with `data.bin`. Item i is read from offset 4,096 * i.

Training has items 0 to 47 in batches of 4, so 12 batches a pass; validation items 48 to 63, so 4 batches.
"""

import concurrent.futures
import os
import queue
import signal
import sys
import threading
import time

import numpy
import torch

ITEM, BATCH, ITEMS, ALL = 4096, 4, 48, 64


class Reads(torch.utils.data.Dataset):
    def __init__(self, first=0, last=ITEMS):
        self.items, self.file = range(first, last), None

    def __len__(self):
        return len(self.items)

    def open(self):
        self.file = os.open("data.bin", os.O_RDONLY)
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_RANDOM)

    def __getitem__(self, place):
        if self.file is None:
            self.open()
        found = os.pread(self.file, ITEM, self.items[place] * ITEM)
        return torch.tensor([float(found[0]), 1.0])


class Stream(torch.utils.data.IterableDataset):
    """Worker 0 has 20 items of the training, worker 1 has 28: their data end at different times."""

    def __iter__(self):
        data = Reads()
        first = torch.utils.data.get_worker_info().id == 0
        return (data[place] for place in (range(20) if first else range(20, ITEMS)))


class Quiet(Reads):
    """Reads nothing for every second batch, as behind a buffer."""

    def __getitem__(self, place):
        return torch.zeros(2) if place // BATCH % 2 else super().__getitem__(place)


def loop(passes, *, train=True, leave=None, every=1, after=None):
    """Each of the passes, with an optimizer's step every so many batches."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    for loader, trains in passes:
        for number, batch in enumerate(loader):
            if number == leave:
                break
            if trains:
                model(batch).sum().backward()
                if train and (number + 1) % every == 0:
                    optimizer.step()
                elif not train:  # an optimizer of the program's own
                    with torch.no_grad():
                        for each in model.parameters():
                            each -= 1e-6 * each.grad
            time.sleep(0.001)
            if after is not None:
                after(number)
    return model


def loader_of(data=None, workers=2, kind=torch.utils.data.DataLoader, **choices):
    return kind(Reads() if data is None else data, batch_size=BATCH, num_workers=workers, **choices)


def persistent():
    train = loader_of(persistent_workers=True)
    validate = loader_of(Reads(ITEMS, ALL), persistent_workers=True)
    model = loop([(train, True), (validate, False), (train, True), (validate, False)])
    torch.save(model.state_dict(), "model.pt")


def stateful():
    from torchdata.stateful_dataloader import StatefulDataLoader

    loop([(loader_of(kind=StatefulDataLoader), True)] * 2)


def profiled():
    """The profiler of five steps beside the marks."""
    import dxt_replay_marks

    dxt_replay_marks.PROFILE_AFTER = 3
    recorder = dxt_replay_marks.recording(profile_steps=5)
    recorder.start()
    loop([(loader_of(workers=0), True)], after=lambda number: recorder.counted())
    recorder.stop()


def kill(number):
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)


def hf():
    from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

    class Toy(PreTrainedModel):
        config_class = PretrainedConfig

        def __init__(self, config):
            super().__init__(config)
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x):
            return {"loss": self.layer(x).sum(), "logits": self.layer(x)}

    class Named(Reads):
        def __getitem__(self, place):
            return {"x": super().__getitem__(place)}

    class InOrder(Trainer):
        def _get_train_sampler(self, *_):
            return None

    choices = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "per_device_train_batch_size": BATCH}
    choices |= {"eval_strategy": "steps", "eval_steps": 5, "save_steps": 5, "per_device_eval_batch_size": BATCH}
    arguments = TrainingArguments(output_dir="hf", max_steps=10, gradient_accumulation_steps=2, **choices)
    InOrder(
        model=Toy(PretrainedConfig()), args=arguments, train_dataset=Named(), eval_dataset=Named(ITEMS, ALL)
    ).train()


def ranks():
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    loop([(loader_of(Reads(rank * 24, rank * 24 + 24)), True)])
    torch.distributed.barrier()


def inside():
    """No loader: the loop itself reads each batch within its step, and each optimizer's step is one of two."""
    model = torch.nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(each, 1e-6) for each in ([model.weight], [model.bias])]
    data = Reads()
    for number in range(ITEMS // BATCH):
        batch = torch.stack([data[number * BATCH + place] for place in range(BATCH)])
        model(batch).sum().backward()
        for each in optimizers:
            each.step()
        time.sleep(0.002)


def saved():
    """The pipes of the second pass's workers get the descriptor of the checkpoint, whose close Darshan misses."""
    model = loop([(loader_of(), True)])
    torch.save(model.state_dict(), "saved.pt")
    loop([(loader_of(), True)])


class Elsewhere(Reads):
    """Hands each read to the next of three threads and waits for it, as zarr does."""

    def __getitem__(self, place):
        if self.file is None:
            self.threads = [concurrent.futures.ThreadPoolExecutor(1) for _ in range(3)]
        return self.threads[place % 3].submit(super().__getitem__, place).result()


class Ahead(Stream):
    """Each worker has 24 items, which three threads read, up to eight ahead of the one that is taken."""

    def __iter__(self):
        data, first = Reads(), torch.utils.data.get_worker_info().id * 24
        data.open()
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            asked = [pool.submit(data.__getitem__, first + place) for place in range(8)]
            for place in range(8, 32):
                yield asked.pop(0).result()
                if place < 24:
                    asked.append(pool.submit(data.__getitem__, first + place))


def grain():
    """The loop's process reads with three threads of grain's, up to eight items ahead."""
    import grain

    data, options = Reads(), grain.ReadOptions(num_threads=3, prefetch_buffer_size=8)
    data.open()
    for _ in grain.MapDataset.source(data).map(lambda item: item.numpy()).to_iter_dataset(options).batch(BATCH):
        time.sleep(0.002)


def prefetched():
    """A thread of the loop's process reads up to two batches ahead."""
    batches, data = queue.Queue(2), Reads()
    data.open()

    def fill():
        for first in range(0, ITEMS, BATCH):
            batches.put(torch.stack([data[first + place] for place in range(BATCH)]))
        batches.put(None)

    threading.Thread(target=fill).start()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    while (batch := batches.get()) is not None:
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(0.002)


def background():
    """A thread saves after each of three times four batches; it has ended before the next one is started."""
    state, saving = torch.zeros(4096), []

    def save(number):
        if number % 4 == 3:
            for each in saving:
                each.join()
            saving[:] = [threading.Thread(target=torch.save, args=(state, f"saved.{number}.pt"))]
            saving[0].start()

    loop([(loader_of(), True)], after=save)
    saving[0].join()


def streams():
    """A thread of the loop's process reads the batches, through C streams, which DXT does not trace."""
    batches = queue.Queue(2)

    def fill():
        for number in range(ITEMS // BATCH):
            first = number * BATCH * ITEM
            batches.put([numpy.fromfile("data.bin", "u1", ITEM, offset=first + each * ITEM) for each in range(BATCH)])

    threading.Thread(target=fill).start()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    for _ in range(ITEMS // BATCH):
        model(torch.tensor([[float(each[0]), 1.0] for each in batches.get()])).sum().backward()
        optimizer.step()
        time.sleep(0.002)


JOBS = {
    "ahead": lambda: loop([(loader_of(Ahead()), True)]),  # on storage whose reads take 2 ms, as the next one
    "grain": grain,
    "prefetched": prefetched,
    "background": background,
    "streams": streams,
    "inside": inside,
    "saved": saved,
    "threads": lambda: loop([(loader_of(Elsewhere()), True)]),
    "fork": lambda: loop([(loader_of(), True)]),
    "forkserver": lambda: loop([(loader_of(multiprocessing_context="forkserver"), True)]),
    "persistent": persistent,
    "none": lambda: loop([(loader_of(workers=0), True), (loader_of(Reads(ITEMS, ALL), workers=0), False)]),
    "left": lambda: loop([(loader_of(), True)] * 2, leave=5),
    "accumulate": lambda: loop([(loader_of(), True)], every=4),
    "own": lambda: loop([(loader_of(), True), (loader_of(Reads(ITEMS, ALL)), False)], train=False),
    "stateful": stateful,
    "stream": lambda: loop([(loader_of(Stream()), True)]),
    "quiet": lambda: loop([(loader_of(Quiet()), True)]),
    "kill": lambda: loop([(loader_of(), True)], after=kill),
    "profiled": profiled,
    "hf": hf,
    "ranks": ranks,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    JOBS[sys.argv[1]]()
