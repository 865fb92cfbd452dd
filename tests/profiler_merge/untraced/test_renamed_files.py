"""Temporary names of checkpoint files and what they become."""

import pytest

from dxt_replay.profiler_merge.untraced.renamed_files import WrittenFile, checkpoint_renames, final_name, merged_shard

PART = b"/c/model-1_temp/part-00000-of-00001"


@pytest.mark.parametrize(
    ("temporary", "final"),
    [
        (b"/c/x.index.tempstate6018442353079742780", b"/c/x.index"),
        (b"/c/checkpoint.tmp77ba6b735cbc4cdaaf66314d74dec601", b"/c/checkpoint"),
        (b"/c/\xff\n.tempstate1", b"/c/\xff\n"),
        (b"/c/x.tempstate", None),
        (b"/c/x.tmp77ba", None),
        (b"/c/x.tempstate12/part", None),
        (b"/c/.tmp", None),
    ],
)
def test_a_temporary_name_tells_the_final_one(temporary, final):
    assert final_name(temporary) == final


@pytest.mark.parametrize(
    ("part", "shard", "final"),
    [
        ("part-00000-of-00001", "data-00000-of-00001", b"/c/m.data-00000-of-00001"),
        ("part-00001-of-00004", "data-00000-of-00001", b"/c/m.data-00001-of-00004"),
        ("part-00000-of-00001", "data-00002-of-00003", b"/c/m.data-00002-of-00003"),
    ],
)
def test_shards_are_numbered_through_the_parts(part, shard, final):
    found = merged_shard(f"/c/m_temp/{part}.{shard}".encode())
    assert (found.final, found.index, found.part_index) == (final, b"/c/m.index", f"/c/m_temp/{part}.index".encode())
    assert merged_shard(f"/c/m_temp/{part}.index".encode()) is None


def renames(written, closed=(), opened=()):
    found = checkpoint_renames(
        [WrittenFile(path=path, closed_ns=at) for path, at in written], dict(closed), dict(opened)
    )
    return [(rename.source, rename.target, rename.at_ns) for rename in found]


def test_a_shard_is_renamed_twice_the_second_time_before_the_merged_index():
    data, temporary = PART + b".data-00000-of-00001", PART + b".data-00000-of-00001.tempstate5"
    found = renames([(temporary, 100)], closed={PART + b".index": 180}, opened={b"/c/model-1.index": 200})
    assert found == [(temporary, data, 100), (data, b"/c/model-1.data-00000-of-00001", 180)]


def test_parts_that_were_not_merged_stay():
    assert len(renames([(PART + b".data-00000-of-00001.tempstate5", 100)])) == 1


def test_other_files_keep_their_names():
    assert renames([(b"/data/train.csv", 5)]) == []
