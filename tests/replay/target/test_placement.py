"""Where recorded paths go: readable, contained, distinct, and never a file where another needs a directory."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dxt_replay.replay.target.placement import NAME_MAX, PATH_MAX, TWIN_ROOT, PathMap, parse_map, place
from dxt_replay.traces.errors import UsageError
from tests.capture_builder import File, files_table

TARGET = b"/scratch/target/"
ROOT = TARGET + os.fsencode(TWIN_ROOT) + b"/"


parts = st.one_of(
    st.sampled_from([b"", b".", b"..", b"a", b"b", b"a%20", b"%61", b"...", b"<STDOUT>", b"\n", b"\xff", b"a" * 255]),
    st.binary(max_size=6),
    st.integers(1, 400).map(lambda n: b"x" * n),
    st.integers(1, 200).map(lambda n: "é".encode() * n),
)
paths = st.builds(
    lambda lead, middle: lead + b"/".join(middle),
    st.sampled_from([b"/", b"", b"//", b"../", b"/../../"]),
    st.lists(parts, max_size=6),
)


def placed(*recorded, target=TARGET):
    """Paths below the twin root, in order."""
    root = target + os.fsencode(TWIN_ROOT) + b"/"
    found = [placement.path for placement in place(files_table(recorded), target)]
    assert all(path.startswith(root) for path in found)
    return [path.removeprefix(root) for path in found]


def assert_sound(found, root=ROOT):
    """Strictly below the root by names that no system call reads otherwise, distinct, none a directory of another."""
    as_parts = [tuple(path.removeprefix(root).split(b"/")) for path in found]
    for path, names in zip(found, as_parts, strict=True):
        assert path.startswith(root)
        assert not {b"", b".", b".."} & set(names)
        assert all(len(name) <= NAME_MAX and name.decode("utf-8").isprintable() for name in names)
        assert len(path) <= PATH_MAX
    assert len(set(as_parts)) == len(as_parts)
    directories = {names[:depth] for names in as_parts for depth in range(len(names))}
    assert not directories & set(as_parts)


@given(st.lists(paths, max_size=12))
@example([b"", b"/", b"/..", b"..", b"."])
@example([b"/a", b"/a/b", b"/a/b/c", b"a", b"/x/../a"])
@example([b"/" + b"/".join([b"d" * 200] * 30) + b"/f%d" % i for i in range(3)])
def test_arbitrary_paths_have_sound_places(recorded):
    assert_sound([placement.path for placement in place(files_table(recorded), TARGET)])


@given(st.lists(st.tuples(paths, st.integers(0, 3)), max_size=8))
def test_record_ids_that_come_twice_do_not_make_places_collide(recorded):
    files = [File(path, record_id=record_id) for path, record_id in recorded]
    assert_sound([placement.path for placement in place(files_table(files), TARGET)])


@given(st.lists(paths, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_the_files_does_not_matter(recorded, random):
    files = [File(path, record_id=i) for i, path in enumerate(recorded)]
    shuffled = random.sample(files, len(files))
    there = {file.record_id: path for file, path in zip(files, placed(*files), strict=True)}
    assert {file.record_id: path for file, path in zip(shuffled, placed(*shuffled), strict=True)} == there


@given(st.lists(paths, max_size=8))
def test_a_deep_target_shortens_the_paths_below_it(recorded):
    target = b"/" + b"/".join([b"t" * 250] * 14) + b"/"
    found = [placement.path for placement in place(files_table(recorded), target)]
    assert_sound(found, target + os.fsencode(TWIN_ROOT) + b"/")


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ("/data/train/a.npz", b"data/train/a.npz"),
        ("/data//train/./a.npz", b"data/train/a.npz"),
        ("/data/test/../train/a.npz", b"data/train/a.npz"),
        ("/../../etc/passwd", b"etc/passwd"),
        ("../../x", b"x"),
        ("/etc/passwd", b"etc/passwd"),
        ("<STDOUT>", b"<STDOUT>"),
        ("/daten/größe.h5", "daten/größe.h5".encode()),
        ("/a b/c", b"a b/c"),
        ("/a\nb", b"a%0Ab"),
        (b"/a\x00b", b"a%00b"),
        (b"/a\xffb", b"a%FFb"),
        ("/a%20b", b"a%2520b"),
        ("/\u202eevil", b"%E2%80%AEevil"),
        ("/", b"%~00000000000003e8"),
        ("", b"%~00000000000003e8"),
    ],
)
def test_names_stay_readable(recorded, expected):
    assert placed(recorded) == [expected]


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        (["/a", "/a/b"], [b"a%~00000000000003e8", b"a/b"]),
        (["/x/../a", "/a", "a"], [b"a%~00000000000003e8", b"a", b"a%~00000000000003ea"]),
        ([b"/a\xff", "/a%FF"], [b"a%FF", b"a%25FF"]),
    ],
    ids=["a directory is needed", "the plain record keeps it", "a name that looks escaped"],
)
def test_of_two_files_on_one_path_one_steps_aside(recorded, expected):
    assert placed(*recorded) == expected


def test_files_of_one_directory_with_a_long_name_stay_together():
    names = ["/" + "d" * 300 + "/1", "/" + "d" * 300 + "/2", "/" + "d" * 301 + "/1"]
    one, two, other = (path.split(b"/")[0] for path in placed(*names))
    assert one == two != other


def test_a_long_name_is_cut_between_characters():
    for name in ("xx" + "\n" * 200, "x" + "\n" * 200, "é" * 200, "x" + "é" * 200, "\n" * 200, "x\n" * 120):
        (path,) = placed("/" + name)
        assert_sound([ROOT + path])
        kept = path.decode("utf-8").rpartition("%-")[0]
        assert name.startswith(kept.replace("%0A", "\n"))


class TestMaps:
    @pytest.mark.parametrize(
        ("maps", "recorded", "expected"),
        [
            (["/data=/mnt/real"], ["/data/x/a", "/data"], [b"/mnt/real/x/a", b"/mnt/real"]),
            (["/data=/mnt/real"], ["/database/a", "/home/a"], [ROOT + b"database/a", ROOT + b"home/a"]),
            (["/=/all", "/data/deep=/deep", "/data=/real/"], ["/data/deep/a", "/data/a"], [b"/deep/a", b"/real/a"]),
            (["/=/all", "/data=/real"], ["/b", "/x/../data//a/"], [b"/all/b", b"/real/a"]),
            (["/data=/one", "/data=/two"], [b"/data/a\xff%20\n"], [b"/one/a\xff%20\n"]),
            (["/data=/real"], ["/data/written", "/data/nul\0"], [ROOT + b"data/written", ROOT + b"data/nul%00"]),
        ],
    )
    def test_the_longest_prefix_wins_but_for_a_written_file(self, maps, recorded, expected):
        written = {number for number, path in enumerate(recorded) if path == "/data/written"}
        found = place(files_table(recorded), TARGET, [*map(parse_map, maps)], written=written)
        assert [each.path for each in found] == expected
        assert [each.mapped for each in found] == [not path.startswith(ROOT) for path in expected]

    @given(paths)
    @example(b"/data/../../etc/passwd")
    @example(b"/data/..")
    def test_mapped_paths_stay_below_their_directory(self, recorded):
        (found,) = place(files_table([b"/data/" + recorded]), TARGET, [parse_map("/data=/real")])
        if found.mapped:
            assert b".." not in found.path.split(b"/")
            assert found.path == b"/real" or found.path.startswith(b"/real/")
        else:
            assert_sound([found.path])

    @pytest.mark.parametrize("text", ["", "=", "/data", "/data=", "=/real", "data=/real", "/data=/re\0al"])
    def test_malformed_maps_are_refused(self, text):
        with pytest.raises(UsageError, match="--map"):
            parse_map(text)

    def test_the_directory_becomes_absolute_and_may_hold_an_equals_sign(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        expected = PathMap(prefix=(b"data", b"x"), directory=os.fsencode(tmp_path / "real=1"))
        assert parse_map("/data//x/=real=1") == expected


def test_an_empty_table_has_no_places():
    empty: pa.Table = files_table([])
    assert not len(place(empty, TARGET))
