"""Checkpoints: DLIO's sharding against the sizes that MLPerf Storage prints."""

from __future__ import annotations

import pytest

from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import OPS, READ, WRITE
from dxt_replay.workloads.description import Checkpoint, Model, Parallelism, Transformer, Workload
from dxt_replay.workloads.generate.checkpoint_files import (
    Shard,
    layers_of_stage,
    loading,
    parameters,
    saving,
    shards_of_rank,
)
from dxt_replay.workloads.generate.request_templates import CALL_BYTES


def llama(layers, hidden, ffn, heads, divided, stage, kv_heads=8):
    tensor, pipeline = divided
    return Model(
        type="transformer",
        num_layers=layers,
        parallelism=Parallelism(tensor=tensor, pipeline=pipeline, zero_stage=stage),
        transformer=Transformer(
            vocab_size=128_256,
            hidden_size=hidden,
            ffn_hidden_size=ffn,
            num_attention_heads=heads,
            num_kv_heads=kv_heads,
        ),
    )


LLAMA_8B = llama(32, 4096, 14336, 32, (1, 1), 3)
LLAMA_70B = llama(80, 8192, 28672, 128, (8, 1), 3)
LLAMA_405B = llama(126, 16384, 53248, 128, (8, 32), 1)
LLAMA_1T = llama(128, 25872, 98304, 192, (8, 64), 1, kv_heads=32)


@pytest.mark.parametrize(
    ("model", "ranks", "values", "model_gib", "optimizer_gib"),
    [
        (LLAMA_8B, 8, 8_030_261_248, 15.0, 89.7),
        (LLAMA_70B, 64, 69_882_617_856, 130.2, 781.0),
        (LLAMA_405B, 512, 405_853_388_800, 756.0, 4536.2),
        (LLAMA_1T, 1024, 1_183_035_102_480, 2203.7, 13222.9),
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


def test_files_of_a_rank_of_8b():
    assert [(shard.name, sum(shard.tensors)) for shard in shards_of_rank(LLAMA_8B, 8, 3)] == [
        ("zero_pp_rank_3_mp_rank_0_model_states", 2_007_565_312),
        ("zero_pp_rank_3_mp_rank_0_optim_states", 12_045_637_632),
    ]


def test_stages_of_a_pipeline_save_layer_by_layer():
    first = shards_of_rank(LLAMA_405B, 512, 0)
    assert [shard.name for shard in first[:-1]] == [f"layer_{layer}-model_0_model_states" for layer in range(5)]
    assert sum(first[-1].tensors) == 9_513_171_840
    replica = shards_of_rank(LLAMA_405B, 512, 256)
    assert [shard.name for shard in replica] == ["zero_pp_rank_1_mp_rank_0_optim_states"]


def test_stages_hold_all_layers_once():
    layers = [layer for stage in range(32) for layer in layers_of_stage(LLAMA_405B, stage)]
    assert layers == list(range(129))


def test_a_model_of_given_size_is_written_whole_by_each_writer():
    model = Model(model_size_bytes=1_000_000)
    assert [(shard.name, shard.tensors) for shard in shards_of_rank(model, 4, 0)] == [("model_states-0", (1_000_000,))]
    assert shards_of_rank(model, 4, 1) == ()


def test_lists_of_an_older_description():
    model = Model(
        model_size_bytes=0,
        optimization_groups=(100, 50),
        num_layers=2,
        layer_parameters=(40, 80),
        parallelism=Parallelism(tensor=2, pipeline=2, zero_stage=1),
    )
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
    columns = (operations.op.tolist(), operations.offset.tolist(), operations.length.tolist())
    return [
        (OPS[op], offset, length) if op in (READ, WRITE) else OPS[op]
        for op, offset, length in zip(*columns, strict=True)
    ]


def test_pytorch_writes_what_strace_shows():
    (written,) = saving(
        Workload(framework="pytorch"), Shard(name="model_states-0", items=(("a", 1_000_000),), datatype="int8")
    )
    assert (written.name, written.size) == ("model_states-0.pt", 1_001_577)
    assert rows(written) == [
        "open", "stat", ("write", 0, 704), ("write", 704, 1_000_000), ("write", 1_000_704, 873), "close",
    ]  # fmt: skip


def test_a_sync_comes_before_the_close():
    workload = Workload(framework="pytorch", checkpoint=Checkpoint(fsync=True))
    (written,) = saving(workload, shard_of(10))
    assert rows(written)[-2:] == ["sync", "close"]


def test_large_tensors_take_several_calls():
    (written,) = saving(Workload(framework="pytorch"), shard_of(5 * 10**9))
    lengths = written.length[written.op == WRITE].tolist()
    assert lengths[1:-1] == [CALL_BYTES, CALL_BYTES, 5 * 10**9 - 2 * CALL_BYTES]


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_loading_reads_all_tensors_again(framework):
    workload, shard = Workload(framework=framework), shard_of(1000, 2000)
    written = {each.name: each.size for each in saving(workload, shard)}
    read = loading(workload, shard)
    assert {each.name for each in read} <= written.keys()
    assert sum(int(each.length.sum()) for each in read) >= 3000
    assert all(each.size == written[each.name] for each in read)


def test_the_code_of_v2_saves_no_tensor_with_tensorflow():
    written = {
        reading: {each.name: each.size for each in saving(Workload(reading=reading), shard_of(1_000_000))}
        for reading in ("head", "v2.0")
    }
    assert written["v2.0"] == {"a.pb-1.data-00000-of-00001": 132, "a.pb-1.index": 199, "checkpoint": 95}
    assert written["head"]["a.pb-1.data-00000-of-00001"] == 1_000_188
    assert written["head"]["a.pb-1.index"] == 257
