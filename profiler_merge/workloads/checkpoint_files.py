"""The files of a checkpoint: which rank writes which tensors into which file, by DLIO's rules for sharding. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiler_merge.workloads.description import Model, Workload
from profiler_merge.workloads.request_templates import CLOSE, NO_OFFSET, OPEN, STAT
from traces.errors import UsageError
from traces.schema import APIS, OPS, READ, WRITE

SYNC = OPS.index("sync")
POSIX, STDIO = APIS.index("POSIX"), APIS.index("STDIO")

_TYPE_BYTES = {"int8": 1, "uint8": 1, "fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8}

WRITE_BYTES = 2_147_479_552
"""Bytes that Linux moves at most in one call; larger tensors take several."""

TORCH_HEAD_BYTES, TORCH_BETWEEN_BYTES, TORCH_TAIL_BYTES = 704, 128, 873
"""What `torch.save` writes before the first tensor (the pickle and zip headers), between two, and after the last one
(the directory of the zip), as strace shows it."""

STATE_NAME = "checkpoint"
"""TensorFlow's file that names the latest checkpoint of a folder: all ranks write the same one."""

TF_INDEX_BYTES, TF_STATE_BYTES = 200, 80
"""Sizes of TensorFlow's index of a checkpoint, about, and of its file `checkpoint`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One saved state. name: its file below the checkpoint's folder, without suffix. tensors: bytes of each."""

    name: str
    tensors: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank stands in a model that is divided over `tensor` x `pipeline` x `data` ranks."""

    tensor: int
    pipeline: int
    data: int

    @classmethod
    def of(cls, rank: int, model: Model) -> Place:
        """The place of a rank: neighbours share a layer, then come the stages of the pipeline."""
        parallel = model.parallelism
        return cls(
            tensor=rank % parallel.tensor,
            pipeline=rank // parallel.tensor % parallel.pipeline,
            data=rank // (parallel.tensor * parallel.pipeline),
        )


def data_parallelism(model: Model, ranks: int) -> int:
    """How many ranks hold the same part of the model.

    Raises: UsageError where the ranks are fewer than one whole model needs.
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
    """Layers that a stage of the pipeline holds: 0 is the embedding, l + 1 the head, l + 2 the final norm."""
    layers, stages = model.num_layers or 0, model.parallelism.pipeline
    each, more = divmod(layers, stages)
    first = stage * each + min(stage, more) + 1
    last = first + each - 1 + (stage < more)
    if not model.layer_parameters:
        last = layers + 2 if stage == stages - 1 else last
        first = 0 if stage == 0 else first
    return range(first, last + 1)


def layer_tensors(model: Model, layer: int, shards: int) -> tuple[int, ...]:
    """Bytes of a layer's tensors on one rank; `shards`: ranks that divide each tensor further (ZeRO 3), else 1."""
    tensor = model.parallelism.tensor
    if model.layer_parameters:
        return tuple(values // tensor for values in model.layer_parameters if values > 0)
    sizes, layers = model.transformer, model.num_layers or 0
    hidden, key_value = sizes.hidden_size, sizes.hidden_size // sizes.num_attention_heads * sizes.num_kv_heads
    if layer in (0, layers + 1):
        values = [hidden * sizes.vocab_size // tensor // shards]
    elif layer == layers + 2:
        values = [hidden // shards]
    else:
        divided = (hidden * (hidden + 2 * key_value), hidden**2, 2 * hidden * sizes.ffn_hidden_size)
        attention, dense, up = (value // tensor // shards for value in divided)
        norm, down = hidden // shards, hidden * sizes.ffn_hidden_size // tensor // shards
        values = [norm, attention, dense, norm, up, down]
    return tuple(value * _TYPE_BYTES[model.model_datatype] for value in values if value > 0)


def optimizer_tensors(model: Model, data: int) -> tuple[int, ...]:
    """Bytes of the optimizer's tensors on one rank; `data`: ranks that hold the same part of the model."""
    groups = [values for values in model.optimization_groups if values > 0]
    if model.optimization_groups:
        return (*(values for group in groups for values in (group, group)), sum(groups))
    parts = model.parallelism.tensor * model.parallelism.pipeline
    values = parameters(model) // (parts * data if model.parallelism.zero_stage > 0 else parts)
    if not values:
        return ()
    size = _TYPE_BYTES[model.optimizer_datatype]
    return (values * size, 5 * model.transformer.hidden_size * size) * 3


def shards_of_rank(model: Model, ranks: int, rank: int) -> tuple[Shard, ...]:
    """The states that a rank saves, in order; empty for a rank that saves none.

    Raises: UsageError as `data_parallelism`.
    """
    place, data = Place.of(rank, model), data_parallelism(model, ranks)
    stage = model.parallelism.zero_stage
    part = rank % (model.parallelism.tensor * model.parallelism.pipeline)
    if stage == 0 and place.data > 0:
        return ()
    found = []
    if model.type != "transformer" and model.model_size_bytes > 0:
        found.append(Shard(name=f"model_states-{rank}", tensors=(model.model_size_bytes,)))
    own = f"zero_pp_rank_{place.data}_mp_rank_{part}"
    if model.num_layers or model.layer_parameters:
        layers = layers_of_stage(model, place.pipeline)
        tensors = {layer: layer_tensors(model, layer, data if stage == 3 else 1) for layer in layers}
        together = tuple(size for layer in layers for size in tensors[layer])
        if stage in (0, 3):
            found.append(Shard(name=f"{own}_model_states", tensors=together))
        elif place.data == 0 and model.parallelism.pipeline > 1:
            found += [
                Shard(name=f"layer_{layer}-model_{part}_model_states", tensors=tensors[layer]) for layer in layers
            ]
        elif place.data == 0:
            found.append(Shard(name=f"model_{part}_model_states", tensors=together))
    optimizer = optimizer_tensors(model, data)
    if optimizer:
        found.append(Shard(name=f"{own}_optim_states", tensors=optimizer))
    return tuple(shard for shard in found if shard.tensors)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileOperations:
    """The operations on one file of a checkpoint, (n,): op, api int8; offset, length int64. name: below the
    checkpoint's folder. size: of the file when it is whole, bytes."""

    name: str
    size: int
    op: np.ndarray
    api: np.ndarray
    offset: np.ndarray
    length: np.ndarray


def saving(workload: Workload, shard: Shard) -> tuple[FileOperations, ...]:
    """How a shard is written: PyTorch's zip, or the three files of TensorFlow."""
    if workload.framework == "tensorflow":
        return tuple(
            _operations(name, [(OPEN, NO_OFFSET, 0), *_pieces(WRITE, sizes), (CLOSE, NO_OFFSET, 0)], STDIO)
            for name, sizes in _tensorflow_files(shard).items()
        )
    rows = [(OPEN, NO_OFFSET, 0), (STAT, NO_OFFSET, 0), *_pieces(WRITE, _torch_sizes(shard))]
    if workload.checkpoint.fsync:
        rows.append((SYNC, NO_OFFSET, 0))
    return (_operations(f"{shard.name}.pt", [*rows, (CLOSE, NO_OFFSET, 0)], POSIX),)


def loading(workload: Workload, shard: Shard) -> tuple[FileOperations, ...]:
    """How a shard is read again: the directory of PyTorch's zip from its end, then each tensor."""
    if workload.framework == "tensorflow":
        files = _tensorflow_files(shard)
        return tuple(
            _operations(name, [(OPEN, NO_OFFSET, 0), *_pieces(READ, files[name]), (CLOSE, NO_OFFSET, 0)], POSIX)
            for name in (f"{shard.name}.pb-1.index", f"{shard.name}.pb-1.data-00000-of-00001")
        )
    pieces = _pieces(READ, _torch_sizes(shard))
    rows = [(OPEN, NO_OFFSET, 0), (STAT, NO_OFFSET, 0), pieces[-1], *pieces[:-1], (CLOSE, NO_OFFSET, 0)]
    return (_operations(f"{shard.name}.pt", rows, POSIX),)


def _torch_sizes(shard: Shard) -> list[int]:
    sizes = [TORCH_HEAD_BYTES]
    for number, tensor in enumerate(shard.tensors):
        sizes += [TORCH_BETWEEN_BYTES, tensor] if number else [tensor]
    return [*sizes, TORCH_TAIL_BYTES]


def _tensorflow_files(shard: Shard) -> dict[str, list[int]]:
    """The files of a checkpoint of TensorFlow, and the sizes of what is written into each."""
    prefix = f"{shard.name}.pb-1"
    return {
        f"{prefix}.data-00000-of-00001": list(shard.tensors),
        f"{prefix}.index": [TF_INDEX_BYTES],
        STATE_NAME: [TF_STATE_BYTES],
    }


def _pieces(op: int, sizes: list[int]) -> list[tuple[int, int, int]]:
    """Rows of (op, offset, length): one after the other from 0 on, none larger than WRITE_BYTES."""
    rows: list[tuple[int, int, int]] = []
    offset = 0
    for size in sizes:
        begins = range(0, size, WRITE_BYTES)
        rows += [(op, offset + begin, min(WRITE_BYTES, size - begin)) for begin in begins]
        offset += size
    return rows


def _operations(name: str, rows: list[tuple[int, int, int]], api: int) -> FileOperations:
    op, offset, length = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    return FileOperations(
        name=name,
        size=int((offset + length).max()),
        op=op.astype(np.int8),
        api=np.full(len(rows), api, dtype=np.int8),
        offset=offset,
        length=length,
    )
