"""The files of a checkpoint: which rank writes which tensors by DLIO's rules, and with what requests. Pure.

PyTorch's archive is an uncompressed zip with the data of each entry at a multiple of 64 bytes: the pickled dictionary,
a few small entries, then one entry for each tensor. Python writes it through a buffer of one block. Source: PyTorch 2.1
and later (`caffe2/serialize/inline_container.cc`, `torch/serialization.py`), checked with strace. Archives above 4 GiB
have 8 more bytes for each entry, which are left out. It is loaded as MLPerf Storage v3.0 does: by several threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Union

import numpy as np

from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import APIS, OPS, READ, WRITE
from dxt_replay.workloads.description import Model, Workload
from dxt_replay.workloads.generate.requests import CALL_BYTES, CLOSE, NO_OFFSET, OPEN, STAT

SYNC = OPS.index("sync")
POSIX, STDIO = APIS.index("POSIX"), APIS.index("STDIO")

LOADING_READERS, LOADING_BYTES = 4, 128 << 20
"""Threads that each load a part of a file of PyTorch, and the size of their requests (MLPerf Storage v3.0)."""

STATE_NAME = "checkpoint"
"""TensorFlow's file that names the latest checkpoint of a folder: all ranks write the same one."""

TF_DATA_BYTES, TF_INDEX_BYTES, TF_STATE_BYTES = (132, 56), (199, 58), 95
"""Sizes of TensorFlow's files: data and index without a tensor, the additions per tensor beside its values, and the
file `checkpoint`. Measured with strace on TensorFlow 2.21, for names of DLIO's length."""

STORAGES = {
    "int8": ("CharStorage", 1), "uint8": ("ByteStorage", 1), "fp16": ("HalfStorage", 2),
    "bf16": ("BFloat16Storage", 2), "fp32": ("FloatStorage", 4), "fp64": ("DoubleStorage", 8),
}  # fmt: skip
"""Datatype of DLIO -> PyTorch's class of storage, and the bytes of an element."""

Items = tuple[tuple[str, Union[int, "Items"]], ...]
"""Names -> elements of tensors, or further items below a name, in order."""

Request = tuple[int, int]
"""Offset and length."""

ROW = np.dtype([("op", np.int8), ("offset", np.int64), ("length", np.int64), ("thread", np.int64)])
"""An operation; thread: 0 for the training thread, else the number of a thread that loads, from 1."""


class FileOperations(NamedTuple):
    """The operations (ROW) on one file of a checkpoint. name: below its folder. size: bytes of the complete file."""

    name: str
    size: int
    api: int
    rows: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One saved state. name: its file below the checkpoint's folder, without suffix. items: its tensors. datatype: of
    all of them, in the description's words."""

    name: str
    items: Items
    datatype: str

    @property
    def tensors(self) -> tuple[int, ...]:
        """Bytes of each tensor in order."""
        return tuple(elements * STORAGES[self.datatype][1] for elements in _elements(self.items))


def _elements(items: Items) -> Iterator[int]:
    for _, value in items:
        if isinstance(value, int):
            yield value
        else:
            yield from _elements(value)


def _numbered(values: Iterable[int]) -> Items:
    """Tensors by number; those without elements are left out."""
    return tuple((str(number), value) for number, value in enumerate(values) if value > 0)


def parameters(model: Model) -> int:
    """Parameters of the transformer: embedding, layers, final norm and head; 0 without layers."""
    if not model.num_layers:
        return 0
    sizes = model.transformer
    hidden, key_value = sizes.hidden_size, sizes.hidden_size // sizes.num_attention_heads * sizes.num_kv_heads
    layer = 2 * hidden + hidden * (hidden + 2 * key_value) + hidden**2 + 3 * hidden * sizes.ffn_hidden_size
    return 2 * sizes.vocab_size * hidden + hidden + model.num_layers * layer


def layers_of_stage(model: Model, stage: int) -> range:
    """Layers of a stage of the pipeline: 0 is the embedding, l + 1 the head, l + 2 the final norm, for l layers."""
    layers, stages = model.num_layers or 0, model.parallelism.pipeline
    each, more = divmod(layers, stages)
    first = stage * each + min(stage, more) + 1
    last = first + each - 1 + (stage < more)
    if not model.layer_parameters:
        last = layers + 2 if stage == stages - 1 else last
        first = 0 if stage == 0 else first
    return range(first, last + 1)


def _layer_tensors(model: Model, layer: int, shards: int) -> Items:
    """The tensors of a layer on one rank; `shards`: ranks that divide each tensor further (ZeRO 3), else 1."""
    tensor = model.parallelism.tensor
    if model.layer_parameters:
        return _numbered(values // tensor for values in model.layer_parameters)
    sizes, layers = model.transformer, model.num_layers or 0
    hidden, key_value = sizes.hidden_size, sizes.hidden_size // sizes.num_attention_heads * sizes.num_kv_heads
    if layer in (0, layers + 1):
        return _numbered([hidden * sizes.vocab_size // tensor // shards])
    if layer == layers + 2:
        return _numbered([hidden // shards])
    divided = (hidden * (hidden + 2 * key_value), hidden**2, 2 * hidden * sizes.ffn_hidden_size)
    attention, dense, up = (value // tensor // shards for value in divided)
    norm, down = hidden // shards, hidden * sizes.ffn_hidden_size // tensor // shards
    return _numbered([norm, attention, dense, norm, up, down])


def _optimizer_tensors(model: Model, data: int) -> Items:
    """The optimizer's tensors on one rank; `data`: ranks that hold the same part of the model."""
    groups = _numbered(model.optimization_groups)
    if groups:
        pairs = tuple((name, (("a", values), ("b", values))) for name, values in groups)
        return (*pairs, ("combined", sum(_elements(groups))))
    parts = model.parallelism.tensor * model.parallelism.pipeline
    values = parameters(model) // (parts * data if model.parallelism.zero_stage > 0 else parts)
    return _numbered([values, 5 * model.transformer.hidden_size] * 3) if values else ()


def shards_of_rank(model: Model, ranks: int, rank: int) -> tuple[Shard, ...]:
    """The states that a rank saves, in order; empty for a rank that saves none. Neighbouring ranks share a layer, then
    come the stages of the pipeline, then the ranks that hold the same part of the model.

    Raises: UsageError if there are fewer ranks than one whole model needs.
    """
    parallel = model.parallelism
    parts = parallel.tensor * parallel.pipeline
    if parallel.data is None and ranks < parts:
        raise UsageError(
            f"{ranks} ranks cannot hold a model that is divided over {parallel.tensor} x {parallel.pipeline} ranks: "
            f"give --ranks {parts} or a multiple of it, or model.parallelism.data for a subset"
        )
    replica = rank // parts
    if parallel.zero_stage == 0 and replica > 0:
        return ()
    states = _states(model, parallel.data or ranks // parts, rank // parallel.tensor % parallel.pipeline, replica == 0)
    names = {"rank": rank, "data": replica, "part": rank % parts}
    return tuple(Shard(name=name.format(**names), items=items, datatype=datatype) for name, items, datatype in states)


@lru_cache(maxsize=1024)
def _states(model: Model, data: int, pipeline: int, first_replica: bool) -> tuple[tuple[str, Items, str], ...]:
    """States that the ranks of a pipeline stage save: names with places for the rank's numbers, tensors, datatypes."""
    stage, own = model.parallelism.zero_stage, "zero_pp_rank_{data}_mp_rank_{part}"
    listed = "int8"  # DLIO takes the values of lists for bytes
    found: list[tuple[str, Items, str]] = []
    if model.type != "transformer" and model.model_size_bytes > 0:
        found.append(("model_states-{rank}", (("a", model.model_size_bytes),), listed))
    if model.num_layers or model.layer_parameters:
        datatype = listed if model.layer_parameters else model.model_datatype
        layers = layers_of_stage(model, pipeline)
        tensors = {layer: _layer_tensors(model, layer, data if stage == 3 else 1) for layer in layers}
        # The layers of a list are one object, saved once.
        together = tuple((str(layer), tensors[layer]) for layer in (layers[:1] if model.layer_parameters else layers))
        if stage in (0, 3):
            found.append((f"{own}_model_states", together, datatype))
        elif first_replica and model.parallelism.pipeline > 1:
            name = "layer_%d-model_{part}_model_states"
            found += [(name % layer, tensors[layer], datatype) for layer in layers]
        elif first_replica:
            found.append(("model_{part}_model_states", together, datatype))
    optimizer = listed if model.optimization_groups else model.optimizer_datatype
    found.append((f"{own}_optim_states", _optimizer_tensors(model, data), optimizer))
    return tuple(each for each in found if any(_elements(each[1])))


def saving(workload: Workload, shard: Shard, block_bytes: int = 4096) -> tuple[FileOperations, ...]:
    """The writes of a shard: PyTorch's zip, or the three files of TensorFlow. block_bytes: block size of the file
    system."""
    if workload.framework == "tensorflow":
        files = _tensorflow_files(shard)
        return tuple(_operations(name, [[(WRITE, _behind(sizes))]], api=STDIO) for name, sizes in files.items())
    writes = (WRITE, torch_requests(shard.items, shard.datatype, block_bytes))
    sync = [(SYNC, [(NO_OFFSET, 0)])] if workload.checkpoint.fsync else []
    return (_operations(f"{shard.name}.pt", [[(STAT, [(NO_OFFSET, 0)]), writes, *sync]]),)


def loading(workload: Workload, shard: Shard, block_bytes: int = 4096) -> tuple[FileOperations, ...]:
    """The reads of a shard: each of LOADING_READERS threads opens PyTorch's file for its part of it, side by side."""
    if workload.framework == "tensorflow":
        files = _tensorflow_files(shard)
        data, index, _ = files
        return tuple(_operations(name, [[(READ, _behind(files[name]))]]) for name in (index, data))
    size = sum(torch_requests(shard.items, shard.datatype, block_bytes)[-1])
    parts = _parts(0, size, -(-size // LOADING_READERS))
    reads = [[(READ, _parts(begin, begin + length, LOADING_BYTES))] for begin, length in parts]
    return (_operations(f"{shard.name}.pt", reads, first_thread=1),)


def _parts(begin: int, end: int, size: int) -> list[Request]:
    """Requests of `size` bytes from `begin` to `end`, the last one short."""
    return [(at, min(size, end - at)) for at in range(begin, end, size)]


def _behind(sizes: Sequence[int]) -> list[Request]:
    """Requests of these sizes, each directly behind the previous one."""
    return list(zip(np.cumsum([0, *sizes]).tolist(), sizes, strict=False))


def _tensorflow_files(shard: Shard) -> dict[str, list[int]]:
    """The files of a checkpoint of TensorFlow, and the sizes of what is written into each."""
    tensors = list(shard.tensors)
    return {
        f"{shard.name}.pb-1.data-00000-of-00001": [*tensors, TF_DATA_BYTES[0] + TF_DATA_BYTES[1] * len(tensors)],
        f"{shard.name}.pb-1.index": [TF_INDEX_BYTES[0] + TF_INDEX_BYTES[1] * len(tensors)],
        STATE_NAME: [TF_STATE_BYTES],
    }


def _operations(
    name: str, visits: list[list[tuple[int, list[Request]]]], *, api: int = POSIX, first_thread: int = 0
) -> FileOperations:
    """The operations of some visits, each by a thread and between an open and a close: (operation, its requests) one
    after the other. No call moves more than CALL_BYTES."""
    rows: list[tuple[int, int, int, int]] = []
    for thread, visit in enumerate(visits, first_thread):
        rows.append((OPEN, NO_OFFSET, 0, thread))
        for op, requests in visit:
            for offset, size in requests:
                parts = _parts(offset, offset + size, CALL_BYTES) if op in (READ, WRITE) else [(offset, size)]
                rows += [(op, *part, thread) for part in parts]
        rows.append((CLOSE, NO_OFFSET, 0, thread))
    found = np.array(rows, dtype=ROW)
    return FileOperations(name, int((found["offset"] + found["length"]).max()), api, found)


_ALIGNMENT, _HEADER, _DESCRIPTOR, _ENTRY, _ENDS = 64, 30, 16, 46, (56, 20, 22)


@lru_cache(maxsize=1024)
def torch_requests(items: Items, datatype: str, block_bytes: int) -> list[Request]:
    """The writes of `torch.save` through a buffer of `block_bytes`, for a dictionary of tensors of one datatype."""
    storage, element_bytes = STORAGES[datatype]
    sizes = {"data.pkl": pickle_bytes(items, storage), ".format_version": 1, ".storage_alignment": 2, "byteorder": 6}
    sizes |= {f"data/{number}": elements * element_bytes for number, elements in enumerate(_elements(items))}
    sizes |= {"version": 2, ".data/serialization_id": 40}
    pieces: list[int] = []
    at = named = 0
    for name, size in sizes.items():
        name_bytes = len("archive/") + len(name)
        data = -(-(at + _HEADER + name_bytes + 4) // _ALIGNMENT) * _ALIGNMENT
        pieces += [data - at, size, _DESCRIPTOR]
        at, named = data + size + _DESCRIPTOR, named + _ENTRY + name_bytes
    return _buffered_writes([*pieces, named, *_ENDS], block_bytes)


def _buffered_writes(pieces: list[int], block_bytes: int) -> list[Request]:
    """The writes that Python's `BufferedWriter` makes of consecutive pieces, the last one at the close."""
    found, begin, held = [], 0, 0
    for piece in [*pieces, block_bytes + 1]:
        if held + piece > block_bytes:
            found.append((begin, held))
            begin, held = begin + held, 0
            if piece > block_bytes:
                found.append((begin, piece))
                begin += piece
                continue
        held += piece
    return [each for each in found[:-1] if each[1]]


def pickle_bytes(items: Items, storage: str) -> int:
    """Bytes of the pickled dictionary (protocol 2), which contains a storage for each tensor: Python's pickler names
    repeated objects by their number in a memo."""
    memo: dict[str, int] = {}
    used = tensors = 0

    def put() -> int:
        nonlocal used
        used += 1
        return 2 if used <= 256 else 5

    def once(name: str, head: int) -> int:
        if name in memo:
            return 2 if memo[name] < 256 else 5
        memo[name] = used
        return head + len(name) + put()

    def integer(value: int) -> int:  # 1, 2 or 4 bytes behind its code, or a length and as many bytes as it needs
        if value < 1 << 31:
            return 2 if value < 1 << 8 else 3 if value < 1 << 16 else 5
        return 2 + value.bit_length() // 8 + 1

    def tensor(elements: int) -> int:
        nonlocal tensors
        total = once("torch._utils\n_rebuild_tensor_v2\n", 1) + 1
        total += 1 + once("storage", 5) + once(f"torch\n{storage}\n", 1)
        total += 5 + len(str(tensors)) + put() + once("cpu", 5) + integer(elements) + 1 + put() + 1
        tensors += 1
        total += 2 + integer(elements) + 1 + put() + 2 + 1 + put() + 1
        total += once("collections\nOrderedDict\n", 1) + 2 + put()
        return total + 1 + put() + 1 + put()

    def dictionary(items: Items) -> int:
        batches = [len(items[begin : begin + 1000]) for begin in range(0, len(items), 1000)]
        total = 1 + put() + sum(2 if batch > 1 else 1 for batch in batches)
        for name, value in items:
            total += 5 + len(name.encode()) + put()
            total += tensor(value) if isinstance(value, int) else dictionary(value)
        return total

    return 2 + dictionary(items) + 1
