"""Checkpoints: DLIO's sharding against the sizes that MLPerf Storage prints; PyTorch 2.13's requests under strace."""

from __future__ import annotations

import pytest

from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import OPS, READ, WRITE
from dxt_replay.workloads.description import Checkpoint, Model, Parallelism, Transformer, Workload
from dxt_replay.workloads.generate.checkpoints import (
    Shard,
    loading,
    parameters,
    pickle_bytes,
    saving,
    shards_of_rank,
    torch_requests,
)
from dxt_replay.workloads.generate.requests import CALL_BYTES


def llama(layers, hidden, ffn, heads, divided, stage, kv_heads=8):
    sizes = {"vocab_size": 128_256, "hidden_size": hidden, "ffn_hidden_size": ffn, "num_attention_heads": heads}
    parallel = Parallelism(tensor=divided[0], pipeline=divided[1], zero_stage=stage)
    transformer = Transformer(**sizes, num_kv_heads=kv_heads)
    return Model(type="transformer", num_layers=layers, parallelism=parallel, transformer=transformer)


LLAMA_405B = llama(126, 16384, 53248, 128, (8, 32), 1)


@pytest.mark.parametrize(
    ("model", "ranks", "values", "model_gib", "optimizer_gib"),
    [
        (llama(32, 4096, 14336, 32, (1, 1), 3), 8, 8_030_261_248, 15.0, 89.7),
        (llama(80, 8192, 28672, 128, (8, 1), 3), 64, 69_882_617_856, 130.2, 781.0),
        (LLAMA_405B, 512, 405_853_388_800, 756.0, 4536.2),
        (llama(128, 25872, 98304, 192, (8, 64), 1, kv_heads=32), 1024, 1_183_035_102_480, 2203.7, 13222.9),
    ],
    ids=["8B", "70B", "405B", "1T"],
)
def test_totals_of_llama_3(model, ranks, values, model_gib, optimizer_gib):
    shards = [shard for rank in range(ranks) for shard in shards_of_rank(model, ranks, rank)]
    optimizer = sum(sum(shard.tensors) for shard in shards if shard.name.endswith("optim_states"))
    every = sum(sum(shard.tensors) for shard in shards)
    assert parameters(model) == values
    assert (every - optimizer) / 2**30 == pytest.approx(model_gib, abs=0.06)
    assert optimizer / 2**30 == pytest.approx(optimizer_gib, abs=0.06)


def test_stages_of_a_pipeline_save_layer_by_layer():
    first = shards_of_rank(LLAMA_405B, 512, 0)
    assert [shard.name for shard in first[:-1]] == [f"layer_{layer}-model_0_model_states" for layer in range(5)]
    assert sum(first[-1].tensors) == 9_513_171_840
    replica = shards_of_rank(LLAMA_405B, 512, 256)
    assert [shard.name for shard in replica] == ["zero_pp_rank_1_mp_rank_0_optim_states"]


def test_a_model_of_given_size_is_written_whole_by_each_writer():
    model = Model(model_size_bytes=1_000_000)
    assert [(shard.name, shard.tensors) for shard in shards_of_rank(model, 4, 0)] == [("model_states-0", (1_000_000,))]
    assert shards_of_rank(model, 4, 1) == ()


def test_lists_of_an_older_description():
    parallel = Parallelism(tensor=2, pipeline=2, zero_stage=1)
    lists = {"optimization_groups": (100, 50), "layer_parameters": (40, 80)}
    model = Model(model_size_bytes=0, num_layers=2, parallelism=parallel, **lists)
    assert [(shard.name, shard.tensors) for shard in shards_of_rank(model, 4, 2)] == [
        ("layer_2-model_2_model_states", (20, 40)),
        ("zero_pp_rank_0_mp_rank_2_optim_states", (100, 100, 50, 50, 150)),
    ]


def test_too_few_ranks_for_the_model_are_refused():
    with pytest.raises(UsageError, match="give --ranks 256 or a multiple"):
        shards_of_rank(LLAMA_405B, 8, 0)


def shard_of(*elements):
    items = tuple((str(number), each) for number, each in enumerate(elements))
    return Shard(name="a", items=items, datatype="int8")


def rows(operations):
    columns = [operations.rows[name].tolist() for name in ("op", "offset", "length")]
    return [
        (OPS[op], offset, length) if op in (READ, WRITE) else OPS[op]
        for op, offset, length in zip(*columns, strict=True)
    ]


def test_large_tensors_take_several_calls():
    (written,) = saving(Workload(framework="pytorch"), shard_of(5 * 10**9))
    lengths = written.rows["length"][written.rows["op"] == WRITE].tolist()
    assert lengths[1:-1] == [CALL_BYTES, CALL_BYTES, 5 * 10**9 - 2 * CALL_BYTES]


@pytest.mark.parametrize("fsync", [False, True])
def test_a_checkpoint_is_synced_if_asked_and_loaded_in_four_parts_side_by_side(fsync):
    mib = 1 << 20
    workload = Workload(framework="pytorch", checkpoint=Checkpoint(fsync=fsync))
    (written,) = saving(workload, shard_of(35 * mib, 35 * mib))
    assert rows(written)[-2:] == ["sync" if fsync else ("write", 73_401_152, 933), "close"]
    assert set(written.rows["thread"].tolist()) == {0}
    shard = shard_of(600 * mib)
    (read,), (written,) = loading(workload, shard), saving(workload, shard)
    part = -(-written.size // 4)
    for number in range(4):
        begin, mine = number * part, read._replace(rows=read.rows[read.rows["thread"] == number + 1])
        rest = ("read", begin + 128 * mib, min(part, written.size - begin) - 128 * mib)
        assert rows(mine) == ["open", ("read", begin, 128 * mib), rest, "close"]


def items_of(*values):
    return tuple((str(number), value) for number, value in enumerate(values))


OPTIMIZER = items_of(*[50_512, 320] * 3)
_LAYER = (64, 64 * 128, 64 * 64, 64, 2 * 64 * 128, 64 * 128)
LAYERS = items_of(*(items_of(*(n // 2 for n in of)) for of in ((64_000,), _LAYER, _LAYER, (64_000,), (64,))))
"""A transformer of 2 layers: hidden 64, feed-forward 128, vocabulary 1000, 8 heads of which 4 for keys."""


@pytest.mark.parametrize(
    ("items", "datatype", "writes"),
    [
        (OPTIMIZER, "fp32", "0+1024 1024+202048 203072+1408 204480+202048 406528+1408 407936+202048 609984+2517"),
        (
            LAYERS, "fp16",
            "0+1600 1600+64000 65600+192 65792+8192 73984+64 74048+4096 78144+192 78336+16384 94720+64 94784+8192 "
            "102976+192 103168+8192 111360+64 111424+4096 115520+320 115840+16384 132224+128 132352+8192 140544+128 "
            "140672+64000 204672+1910",
        ),
    ],
)  # fmt: skip
def test_the_writes_of_torch_are_those_under_strace_with_blocks_of_4096_bytes(items, datatype, writes):
    assert " ".join(f"{at}+{size}" for at, size in torch_requests(items, datatype, 4096)) == writes
    assert pickle_bytes(OPTIMIZER, "FloatStorage") == 460


@pytest.mark.parametrize("block_bytes", [4096, 1 << 20])
def test_writes_cover_the_file_once(block_bytes):
    items = items_of(*(items_of(*[100_000, 320] * 3) for _ in range(80)))
    writes = torch_requests(items, "fp64", block_bytes)
    ends = [offset + length for offset, length in writes]
    assert [offset for offset, _ in writes] == [0, *ends[:-1]]
    assert ends[-1] >= 80 * 3 * 8 * 100_320
