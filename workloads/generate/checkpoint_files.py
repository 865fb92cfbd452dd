"""The files of a checkpoint: which rank writes which tensors to which file, by DLIO's sharding rules. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Union

import numpy as np

from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import APIS, OPS, READ, WRITE
from dxt_replay.workloads.description import Model, Workload
from dxt_replay.workloads.generate.request_templates import CALL_BYTES, CLOSE, NO_OFFSET, OPEN, STAT
from dxt_replay.workloads.generate.torch_archive import (
    STORAGES,
    Request,
    State,
    archive_of,
    archive_reads,
    archive_writes,
)

SYNC = OPS.index("sync")
POSIX, STDIO = APIS.index("POSIX"), APIS.index("STDIO")

STREAM_BYTES = 32 << 20
"""Size of MLPerf Storage v3.0's write requests: it writes a checkpoint's bytes without its tensors."""

STREAM_READERS, STREAM_READ_BYTES = 4, 128 << 20
"""Threads that each read a part of such a checkpoint, and the size of their requests."""

STATE_NAME = "checkpoint"
"""TensorFlow's file that names the latest checkpoint of a folder: all ranks write the same one."""

TF_DATA_BYTES, TF_INDEX_BYTES, TF_STATE_BYTES = (132, 56), (199, 58), 95
"""Sizes of TensorFlow's files: data and index without a tensor, the additions per tensor beside its values, and the
file `checkpoint`. Measured with strace on TensorFlow 2.21, for names of DLIO's length."""

Items = tuple[tuple[str, Union[int, "Items"]], ...]
"""Names -> elements of tensors, or further items below a name, in order."""


_Row = tuple[int, int, int]
"""Operation, offset and length."""

_STAT: _Row = (STAT, NO_OFFSET, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One saved state.

    name: its file below the checkpoint's folder, without suffix. items: its tensors.
    datatype: of all of them, in the description's words."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a rank in a model that is divided over `tensor` x `pipeline` x `data` ranks."""

    tensor: int
    pipeline: int
    data: int

    @classmethod
    def of(cls, rank: int, model: Model) -> Place:
        """The place of a rank: neighbouring ranks share a layer, then come the stages of the pipeline."""
        parallel = model.parallelism
        return cls(
            tensor=rank % parallel.tensor,
            pipeline=rank // parallel.tensor % parallel.pipeline,
            data=rank // (parallel.tensor * parallel.pipeline),
        )


def data_parallelism(model: Model, ranks: int) -> int:
    """Number of ranks that hold the same part of the model.

    Raises: UsageError if there are fewer ranks than one whole model needs.
    """
    parallel = model.parallelism
    parts = parallel.tensor * parallel.pipeline
    if parallel.data is not None:
        return parallel.data
    if ranks < parts:
        raise UsageError(
            f"{ranks} ranks cannot hold a model that is divided over {parallel.tensor} x {parallel.pipeline} ranks: "
            f"give --ranks {parts} or a multiple of it, or model.parallelism.data for a subset"
        )
    return ranks // parts


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


def layer_tensors(model: Model, layer: int, shards: int) -> Items:
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


def optimizer_tensors(model: Model, data: int) -> Items:
    """The optimizer's tensors on one rank; `data`: ranks that hold the same part of the model."""
    groups = _numbered(model.optimization_groups)
    if groups:
        pairs = tuple((name, (("a", values), ("b", values))) for name, values in groups)
        return (*pairs, ("combined", sum(_elements(groups))))
    parts = model.parallelism.tensor * model.parallelism.pipeline
    values = parameters(model) // (parts * data if model.parallelism.zero_stage > 0 else parts)
    return _numbered([values, 5 * model.transformer.hidden_size] * 3) if values else ()


def shards_of_rank(model: Model, ranks: int, rank: int) -> tuple[Shard, ...]:
    """The states that a rank saves, in order; empty for a rank that saves none.

    Raises: UsageError as `data_parallelism`.
    """
    place, data = Place.of(rank, model), data_parallelism(model, ranks)
    if model.parallelism.zero_stage == 0 and place.data > 0:
        return ()
    part = rank % (model.parallelism.tensor * model.parallelism.pipeline)
    names = {"rank": rank, "data": place.data, "part": part}
    states = _states(model, data, place.pipeline, place.data == 0)
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
        tensors = {layer: layer_tensors(model, layer, data if stage == 3 else 1) for layer in layers}
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
    found.append((f"{own}_optim_states", optimizer_tensors(model, data), optimizer))
    return tuple(each for each in found if any(_elements(each[1])))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileOperations:
    """The operations on one file of a checkpoint, (n,): op, api int8; offset, length int64.

    name: below the checkpoint's folder. size: bytes of the complete file."""

    name: str
    size: int
    op: np.ndarray
    api: np.ndarray
    offset: np.ndarray
    length: np.ndarray


def saving(workload: Workload, shard: Shard, block_bytes: int = 4096) -> tuple[FileOperations, ...]:
    """The writes of a shard: PyTorch's zip, or the three files of TensorFlow. block_bytes: block size of the file
    system."""
    if workload.framework == "tensorflow":
        files = _tensorflow_files(workload, shard)
        return tuple(_operations(name, _opened(_pieces(WRITE, _behind(files[name]))), STDIO) for name in files)
    sync = [(SYNC, NO_OFFSET, 0)]
    if workload.reading == "v3.0":
        rows = _opened(_pieces(WRITE, _parts(0, sum(shard.tensors), STREAM_BYTES)) + sync)
    else:
        writes, _ = _torch_requests(shard.items, shard.datatype, block_bytes)
        rows = _opened([_STAT, *_pieces(WRITE, writes), *(sync if workload.checkpoint.fsync else [])])
    return (_operations(f"{shard.name}.pt", rows, POSIX),)


def loading(workload: Workload, shard: Shard, block_bytes: int = 4096) -> tuple[FileOperations, ...]:
    """The reads of a shard: the directory of PyTorch's zip from its end, then each tensor."""
    if workload.framework == "tensorflow":
        files = _tensorflow_files(workload, shard)
        names = (f"{shard.name}.pb-1.index", f"{shard.name}.pb-1.data-00000-of-00001")
        return tuple(_operations(name, _opened(_pieces(READ, _behind(files[name]))), POSIX) for name in names)
    if workload.reading == "v3.0":
        # Each reader opens the file for its part, one after the other.
        size = sum(shard.tensors)
        parts = _parts(0, size, -(-size // STREAM_READERS))
        reads = [_parts(begin, begin + length, STREAM_READ_BYTES) for begin, length in parts]
        rows = [row for each in reads for row in _opened(_pieces(READ, each))]
    else:
        _, requests = _torch_requests(shard.items, shard.datatype, block_bytes)
        rows = _opened([_STAT, *_pieces(READ, requests)])
    return (_operations(f"{shard.name}.pt", rows, POSIX),)


def _opened(rows: list[_Row]) -> list[_Row]:
    """The operations between the open of the file and its close."""
    return [(OPEN, NO_OFFSET, 0), *rows, (CLOSE, NO_OFFSET, 0)]


def _parts(begin: int, end: int, size: int) -> list[Request]:
    """Requests of `size` bytes from `begin` to `end`, the last one short."""
    return [(at, min(size, end - at)) for at in range(begin, end, size)]


@lru_cache(maxsize=1024)
def _torch_requests(items: Items, datatype: str, block_bytes: int) -> tuple[list[Request], list[Request]]:
    """The writes and the reads of a state."""
    archive = archive_of(_state(items), datatype)
    return archive_writes(archive, block_bytes), archive_reads(archive, block_bytes)


def _state(items: Items) -> dict[str, int | State]:
    return {name: value if isinstance(value, int) else _state(value) for name, value in items}


def _behind(sizes: Sequence[int]) -> list[Request]:
    """Requests of these sizes, each directly behind the previous one."""
    return list(zip(np.cumsum([0, *sizes]).tolist(), sizes, strict=False))


def _tensorflow_files(workload: Workload, shard: Shard) -> dict[str, list[int]]:
    """The files of a checkpoint of TensorFlow, and the sizes of what is written into each.

    The code of v2.0 passes TensorFlow a state that it does not save: no tensor is written.
    """
    prefix = f"{shard.name}.pb-1"
    tensors = [] if workload.reading == "v2.0" else list(shard.tensors)
    return {
        f"{prefix}.data-00000-of-00001": [*tensors, TF_DATA_BYTES[0] + TF_DATA_BYTES[1] * len(tensors)],
        f"{prefix}.index": [TF_INDEX_BYTES[0] + TF_INDEX_BYTES[1] * len(tensors)],
        STATE_NAME: [TF_STATE_BYTES],
    }


def _pieces(op: int, requests: Sequence[Request]) -> list[_Row]:
    """Rows of (op, offset, length), none larger than CALL_BYTES."""
    return [
        (op, offset + begin, min(CALL_BYTES, size - begin))
        for offset, size in requests
        for begin in range(0, size, CALL_BYTES)
    ]


def _operations(name: str, rows: list[_Row], api: int) -> FileOperations:
    op, offset, length = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    return FileOperations(
        name=name,
        size=int((offset + length).max()),
        op=op.astype(np.int8),
        api=np.full(len(rows), api, dtype=np.int8),
        offset=offset,
        length=length,
    )
