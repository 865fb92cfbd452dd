"""The requests of torch.save and torch.load: those of PyTorch 2.13 under strace on ext4, with blocks of 4096 bytes."""

from __future__ import annotations

import pytest

from dxt_replay.workloads.generate.torch_archive import archive_of, archive_reads, archive_writes, pickle_bytes


def optimizer(elements):
    return {str(number): value for number, value in enumerate([elements, 320] * 3)}


def transformer(shards):
    """A transformer of 2 layers: hidden 64, feed-forward 128, vocabulary 1000, 8 heads of which 4 for keys."""
    layer = (64, 64 * 128, 64 * 64, 64, 2 * 64 * 128, 64 * 128)
    layers = [(64_000,), layer, layer, (64_000,), (64,)]
    return {
        str(number): {str(index): elements // shards for index, elements in enumerate(values)}
        for number, values in enumerate(layers)
    }


def requests(text):
    return [tuple(map(int, word.split("+"))) for word in text.split()]


def test_small_tensors_share_a_write():
    state = optimizer(50_512)
    archive = archive_of(state, "fp32")
    assert pickle_bytes(state, "FloatStorage") == 460
    assert archive_writes(archive, 4096) == requests(
        "0+1024 1024+202048 203072+1408 204480+202048 406528+1408 407936+202048 609984+2517"
    )


def test_loading_reads_the_directory_from_the_end_and_each_tensor_through_the_buffer():
    archive = archive_of(optimizer(50_512), "fp32")
    assert archive_reads(archive, 4096) == requests(
        "0+4096 0+4096 608405+4096 612479+22 612459+42 612403+98 611640+861 611474+1027 611344+1157 540+4096 0+4096 "
        "4096+198976 203088+4096 207184+199344 406544+4096 410640+199344 610000+2501"
    )


def test_a_dictionary_of_layers():
    archive = archive_of(transformer(2), "fp16")
    assert archive_writes(archive, 4096) == requests(
        "0+1600 1600+64000 65600+192 65792+8192 73984+64 74048+4096 78144+192 78336+16384 94720+64 94784+8192 "
        "102976+192 103168+8192 111360+64 111424+4096 115520+320 115840+16384 132224+128 132352+8192 140544+128 "
        "140672+64000 204672+1910"
    )
    assert archive_reads(archive, 4096) == requests(
        "0+4096 0+4096 202486+4096 206560+22 206540+42 206484+98 205176+1406 205010+1572 204880+1702 1127+4096 0+4096 "
        "4096+61504 65616+4096 69712+4272 74000+4096 78096+4096 82192+12528 94736+4096 98832+4144 102992+4096 "
        "107088+4272 111376+4096 115472+4096 119568+12656 132240+4096 136336+4208 140560+4096 144656+60016 204688+1894"
    )


@pytest.mark.parametrize("block_bytes", [4096, 1 << 20])
def test_writes_cover_the_file_once_and_reads_cover_the_tensors(block_bytes):
    archive = archive_of({str(layer): optimizer(100_000) for layer in range(80)}, "fp64")
    at = 0
    for offset, length in archive_writes(archive, block_bytes):
        assert offset == at
        at += length
    assert at == archive.size

    read = archive_reads(archive, block_bytes)
    assert sum(length for _, length in read) >= 80 * 3 * 8 * 100_320
    assert all(0 <= offset <= offset + length <= archive.size for offset, length in read)


def test_small_archive_is_read_whole():
    archive = archive_of({"a": 8}, "uint8")
    assert archive_writes(archive, 4096) == [(0, archive.size)]
    assert all(offset + length <= archive.size for offset, length in archive_reads(archive, 4096))
