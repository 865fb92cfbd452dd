"""Anonymized captures: nothing of the secrets is left in any byte, and what the job did stays."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dxt_replay
from dxt_replay.replay.anonymize import EXTENSIONS, ROLES, TOP_LEVEL, AnonymousNames
from dxt_replay.traces.files import exact_paths
from dxt_replay.traces.schema import HDF5_SCHEMA, CaptureInfo, Coverage, Job, RankClock, Source, table_from_columns
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.store.writer import write_hdf5
from tests.capture_builder import File, Op, Span, build_capture, lanes_table, read, write
from tests.places import recorded


def found_in(directory, secrets):
    """The secrets that occur anywhere in the capture, in any case: in raw bytes, and once pages are decompressed."""
    texts = []
    for file in filter(Path.is_file, directory.rglob("*")):
        texts += [file.relative_to(directory).as_posix().encode(), file.read_bytes()]
        if file.suffix == ".parquet":
            with pq.ParquetFile(file) as opened:
                texts += [repr((opened.metadata.to_dict(), opened.schema_arrow.metadata)).encode()]
                for column in opened.read().columns:
                    values = (column if pa.types.is_list(column.type) else column.unique()).to_pylist()
                    texts.append(b"\n".join(each if isinstance(each, bytes) else encode(str(each)) for each in values))
        else:
            texts.append(encode(json.dumps(json.loads(file.read_bytes()), ensure_ascii=False)))
    texts = [text.lower() for text in texts]
    return {secret for secret in secrets if any(secret.lower() in text for text in texts)}


def encode(text):
    return text.encode("utf-8", "surrogatepass")


HASHED = "[0-9a-f]{16}"
ZERO_NS = 1_795_208_465_377_488_024
SECRETS = f"""annabel projekt7 kunden messung geheim login77 slurmuser kette 7766554433 9182736455 quelle c0ffee
    ausnahme schritt bewertung datensatz eigenfilter eigenfs warnung {ZERO_NS} {ZERO_NS // 10**9}""".encode().split()


def secret_info():
    """All that capture.json can say of a person, a machine and a day."""
    job = Job(
        nprocs=2, run_time_s=1.0, start_ns=ZERO_NS, end_ns=ZERO_NS + 10**9, zero_ns=ZERO_NS, job_id=7766554433,
        exe="/home/annabel/geheim.py --data /kunden",
        metadata={"h": "cb_nodes=4;cb_config_list=login77:1", "user": "slurmuser", "lib_ver": "3.4.1"},
    )  # fmt: skip
    interval = (-ZERO_NS - 5, -ZERO_NS + 5)
    rebuilt = {"operations": 3, "not_met": [{"file": "/kunden/kette", "counter": "X", "counted": 5}]}
    made_by = {"program": "dxt-replay", "command": "merge", "version": "0.1.0", "exclude": ["*/ausnahme/*"]}
    return CaptureInfo(
        job=job,
        ranks=(0, 1),
        sources=(Source(name="annabel_quelle.darshan", sha256="c0ffee" * 10, kind="darshan"),),
        clock=(RankClock(rank=0, method="wall", offset_ns=-ZERO_NS, residual_ns=5, interval_ns=interval),),
        coverage=Coverage(bytes=0.5, operations=1.0, ranks={0: (0.5, 1.0)}),
        warnings=("/kunden/warnung is damaged",),
        made_by={**made_by, "rebuilt": rebuilt},
    )


@pytest.fixture(scope="module")
def capture(tmp_path_factory):
    lustre = {"mount": "/lustre/annabel", "fs_type": "lustre"}
    files = [
        File("/lustre/annabel/projekt7/train/messung-0001.tfrecord", **lustre),
        File("/lustre/annabel/projekt7/train/messung-0002.tfrecord", **lustre),
        File(b"/kunden/\xffgeheim/../x.tar.gz", mount="/", fs_type="fuse.eigenfs", record_id=9182736455),
        File("<STDIN>", mount="UNKNOWN", fs_type="UNKNOWN"),
        File("/scratch/dxt-anchor.login77.123.bin", mount="/scratch", fs_type="eigenfs"),
    ]
    ops = [read(0, length=4096, start_ns=10_000), read(1, length=100, start_ns=60_000, rank=1)]
    ops += [
        write(2, length=10, start_ns=10**6),
        Op("open", 3, start_ns=2 * 10**6),
        read(4, length=8, start_ns=3 * 10**6),
    ]
    spans = [
        Span("step", 0, 2_000_000, name="schritt von annabel", step=0, thread=4711),
        Span("input_wait", 0, 20_000, name="next_batch", step=0, thread=4711),
        Span("other", 30_000, 40_000, name="evaluate_bewertung", step=0, thread=815),
        Span("step", 0, 2_000_000, name="ProfilerStep#3", step=0, rank=1),
    ]
    made = build_capture(tmp_path_factory.mktemp("made"), files=files, ops=ops, spans=spans, info=secret_info())
    dataset = {"file_id": [2], "dataset": ["/annabel/datensatz"], "type_size": [4], "points": [100]}
    write_hdf5(made.path, table_from_columns({**dataset, "filters": [["gzip", "eigenfilter"]]}, HDF5_SCHEMA))
    return open_capture(made.path)


@pytest.fixture(scope="module")
def shared(capture, tmp_path_factory):
    done = dxt_replay.anonymize(capture, tmp_path_factory.mktemp("anonymous") / "shared.capture")
    assert (done.operations, done.files, done.spans, done.random_key) == (5, 5, 4, True)
    return open_capture(done.path)


def secrets_of(capture):
    """Parts of the recorded paths and mount points, without the words that stay, and their stems."""
    kept = {word.encode() for word in (*TOP_LEVEL, *ROLES, *EXTENSIONS, "<STDIN>", "<STDOUT>", "<STDERR>", "UNKNOWN")}
    paths = [*exact_paths(capture.files), *(mount.encode() for mount in capture.files["mount"].to_pylist())]
    parts = {part for path in paths for part in path.split(b"/")}
    parts |= {part.split(b".")[0] for part in parts}
    # Shorter ones occur by chance in compressed bytes. These stand in every capture, or in names of dxt-replay's own.
    kept |= {b"checkpoint", b"dxt-anchor", b"part-0000"}
    return {part for part in parts - kept if len(part) > 5}


def test_nothing_of_the_secrets_is_left_in_any_byte(capture, shared):
    secrets = {*SECRETS, b"\xffgeheim"}
    assert found_in(capture.path, secrets) == secrets, "the search finds what is there"
    assert found_in(shared.path, secrets) == set()


def test_all_but_names_and_dates_is_equal_and_names_keep_their_structure(capture, shared):
    assert list(shared.operations()) == list(capture.operations())
    for table, named in (
        ("files", ["path", "path_bytes", "record_id", "mount", "fs_type"]),
        ("spans", ["name", "thread"]),
        ("hdf5", ["dataset", "filters"]),
    ):
        here, there = (getattr(each, table).drop_columns(named) for each in (capture, shared))
        assert here == there
    for name in ("ranks", "coverage", "lanes", "dependencies", "partial"):
        assert getattr(shared.info, name) == getattr(capture.info, name)
    first, second, *_ = shared.paths()
    pattern = rf"/lustre/{HASHED}/{HASHED}/train/{HASHED}\.tfrecord"
    assert re.fullmatch(pattern, first) and re.fullmatch(pattern, second) and first != second  # noqa: PT018
    assert first.rsplit("/", 1)[0] == second.rsplit("/", 1)[0]
    assert first.startswith(shared.files["mount"][0].as_py() + "/")
    kinds = shared.files["fs_type"].to_pylist()
    assert (kinds[:2], kinds[2][:5]) == (["lustre", "lustre"], "fuse.")
    names, threads = shared.spans["name"].to_pylist(), shared.spans["thread"].to_pylist()
    assert {"next_batch", "ProfilerStep#3"} < set(names)
    assert any(name.startswith("eval") for name in names)
    assert set(threads) == {-1, 0, 1}


def test_capture_json_has_no_date_and_says_what_is_missing(shared):
    info, job, (clock,) = shared.info, shared.info.job, shared.info.clock
    assert (job.zero_ns, job.start_ns, job.end_ns, job.job_id, job.exe) == (0, 0, 10**9, 0, "")
    assert job.metadata == {"h": "cb_nodes=4", "lib_ver": "3.4.1"}
    assert (clock.offset_ns - clock.interval_ns[0], clock.residual_ns) == (5, 5)
    assert abs(clock.offset_ns) < 10**6
    assert (len(info.warnings), info.made_by["rebuilt"]["operations"], info.made_by["anonymized"]) == (1, 3, True)
    assert [source.kind for source in info.sources] == ["capture", "darshan"]


def test_a_key_gives_the_same_names_again(capture, tmp_path):
    files = []
    for number, key in enumerate(("key one", b"key one", "key two", None, None)):
        dxt_replay.anonymize(capture, tmp_path / f"{number}.capture", key=key)
        files.append(open_capture(tmp_path / f"{number}.capture").files)
    assert files[0] == files[1]
    for name in ("path", "record_id"):
        assert len({str(each[name]) for each in files[1:]}) == 4


def test_a_replay_is_still_known_as_the_replay_of_its_recording(capture, tmp_path):
    """Anonymized under one key, both; the part that was replayed is found by its paths."""
    part = dxt_replay.part(capture, paths=["*/messung-*"])
    (tmp_path / "twin_of_annabel").mkdir()
    dxt_replay.stage(capture, tmp_path / "twin_of_annabel")
    dxt_replay.run(part, tmp_path / "twin_of_annabel", tmp_path / "geheim_replay.capture", pace="none")
    replay = open_capture(tmp_path / "geheim_replay.capture")
    for name, each in (("shared", capture), ("replay", replay)):
        dxt_replay.anonymize(each, tmp_path / f"{name}.capture", key="k")
        assert found_in(tmp_path / f"{name}.capture", SECRETS) == set()
    before = dxt_replay.compare(capture, replay)
    after = dxt_replay.compare(tmp_path / "shared.capture", tmp_path / "replay.capture")
    assert after.workload == before.workload


@pytest.mark.parametrize("name", ["imagenet", "torch_images"])
def test_a_real_capture(name, tmp_path):
    if name == "imagenet":
        log, profiles = dxt_replay.sample(name).log, list(dxt_replay.sample(name).profiles)
    else:
        log, profiles = recorded(f"captures/{name}/logs"), [recorded(f"captures/{name}/profile")]
    dxt_replay.merge(log, tmp_path / "r.capture", profiles=profiles)
    capture, output = open_capture(tmp_path / "r.capture"), tmp_path / "shared.capture"
    secrets = secrets_of(capture) | {str(capture.info.job.zero_ns).encode()}
    secrets |= {word.encode() for word in capture.info.job.exe.split() if len(word) > 5 and not word.startswith("-")}
    secrets |= {source.sha256.encode() for source in capture.info.sources}
    assert len(secrets) > 5
    dxt_replay.anonymize(capture, output)
    assert found_in(output, secrets) == set()
    shared = open_capture(output)
    assert list(shared.operations()) == list(capture.operations())
    before, after = (dxt_replay.summary(each).as_json() | {"job": 0, "warnings": 0} for each in (capture, shared))
    assert after == before
    before, after = (dxt_replay.tables(each, ["model"]).model for each in (capture, shared))
    assert before == after is not None


def test_lanes_keep_their_roles_and_tell_machines_apart_without_their_names(tmp_path):
    told = [(0, 0, "login77", 443322, "main"), (0, 1, "login77", 443323, "worker"), (1, 0, "login78", 554433, None)]
    ops = [read(0, rank=rank, lane=lane, length=8) for rank, lane, *_ in told]
    capture = build_capture(tmp_path, ops=ops, files=["/a"], lanes=lanes_table(told))
    dxt_replay.anonymize(capture.path, tmp_path / "one.capture", key=b"k" * 32)
    assert dxt_replay.verify(tmp_path / "one.capture").passed
    lanes = open_capture(tmp_path / "one.capture").lanes.to_pylist()
    assert [row["role"] for row in lanes] == ["main", "worker", None]
    assert {row[name] for row in lanes for name in ("pid", "thread")} == {None}
    hosts = [row["host"] for row in lanes]
    assert hosts[0] == hosts[1] != hosts[2]
    assert not found_in(tmp_path / "one.capture", (b"login77", b"login78", b"443322", b"443323", b"554433"))


NAMES = AnonymousNames(b"key")
KEPT = {word.encode() for word in TOP_LEVEL | ROLES} | {b"", b".", b".."}


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        (b"/home/ann/data/a.h5", f"/home/{HASHED}/{HASHED}/{HASHED}.h5"),
        (b"/ann/home/x", f"/{HASHED}/{HASHED}/{HASHED}"),
        (b"relative/train/x.Tar.GZ", f"{HASHED}/train/{HASHED}.Tar.GZ"),
        (b"/a//b/../c/", f"/{HASHED}//{HASHED}/../{HASHED}/"),
        (b"s3://bucket/ann/", f"s3://{HASHED}/{HASHED}/"),
        (b"/a/.json", f"/{HASHED}/{HASHED}"),
        (b"/a/x.ann", f"/{HASHED}/{HASHED}"),
        (b"/a/model.data-00000-of-00001", f"/{HASHED}/{HASHED}"),
        (b"/a/host.xplane.pb", f"/{HASHED}/{HASHED}.xplane.pb"),
        (b"/a/dxt-anchor.host.17.bin", f"/{HASHED}/dxt-anchor.{HASHED}.bin"),
        (b"<STDERR>", "<STDERR>"),
        (b"<record 4711>", f"<{HASHED}>"),
        (b"/", "/"),
        (b"", ""),
    ],
)
def test_paths(path, pattern):
    assert re.fullmatch(pattern, NAMES.path(path))


@given(st.lists(st.binary(max_size=8).filter(lambda part: b"/" not in part), max_size=5))
def test_no_part_stays_and_equal_parts_stay_equal(parts):
    path = b"/" + b"/".join(parts)
    named = NAMES.path(path).encode().split(b"/")
    before = path.split(b"/")
    assert len(named) == len(before)
    for part, name in (pairs := set(zip(before[2:], named[2:], strict=True))):
        stem, *endings = name.split(b".")
        assert part in KEPT or re.fullmatch(HASHED.encode(), stem) or part.startswith(b"dxt-anchor.")
        assert all(ending.decode().lower() in EXTENSIONS for ending in endings) or part in KEPT
    assert len({part for part, _ in pairs}) == len({name for _, name in pairs}) == len(pairs)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        *((each, re.escape(each)) for each in ("", "next_batch", "ProfilerStep#12", "MapAndBatchProduce")),
        *((each, re.escape(each)) for each in ("IteratorGetNextOp::DoCompute", "nccl:all_reduce")),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", r"enumerate\(DataLoader\)#_Multi.*__next__"),
        *((each, HASHED) for each in ("train ann's net", "ProfilerStep#ann", "nccl:ann")),
        ("validate ann", f"valid{HASHED}"),
        ("Optimizer.step#AnnSGD.step", f"Optimizer.step#{HASHED}"),
        ("jit_ann_step", f"jit_{HASHED}"),
    ],
)
def test_names_of_spans_stay_where_a_framework_gives_them(name, pattern):
    assert re.fullmatch(pattern, NAMES.span(name))
