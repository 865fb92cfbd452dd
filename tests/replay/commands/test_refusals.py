"""Command lines and the sentence that refuses each: with status 2, before anything is written."""

import shlex

import pytest

from dxt_replay.replay.commands.main import COMMANDS, main, old_options

REFUSED = """
summry => 'summry' is not a command: did you mean summary?
replay => 'replay' is not a command: did you mean run?
glossary => 'glossary' is not a command: did you mean summary (the words
--show sizes summary x => --show is an option of summary: give it after the command, as
--target summary x => No such option
summary => Missing argument 'CAPTURE...'.
summary x --shw steps => Did you mean
summary absent.capture => absent.capture does not exist: give a capture, which
summary text.txt => text.txt is neither a Darshan log, a trace of strace or
summary damaged.darshan => damaged.darshan is not a Darshan log (no magic number): give a
summary empty => empty is not a capture (no capture.json): give a capture, which
summary source.capture --by color => --by 'color': choose rank, file, format, step, size
summary source.capture --show stepz => 'stepz' is not a table: choose findings, overlap, steps, sizes,
summary source.capture --bin 5x --show timeline => --bin '5x' is not a time: write seconds, or a unit as in 10s,
summary source.capture --show steps --by rank -o x.csv => --output x.csv writes one table: give one --show, or --by,
summary source.capture -o x.txt => --output x.txt: give a name that ends in .csv or .parquet, or -
summary source.capture --sort name => --sort orders several jobs, and source.capture is one: leave it
summary source.capture bare.capture --sort name2 => --sort name2: give one of name, job_id, start, program, ranks,
summary source.capture bare.capture --by rank => --by is for one job: leave it out, or name one capture
summary source.capture --workers 0 => --workers 0: give at least 1
summary source.capture --workers 2 --dask x:1 => --workers and --dask exclude each other: the cluster has its
summary source.capture --map x --show tfrecords => --map 'x' is not PREFIX=DIR: give the recorded prefix, an
summary source.capture -q -v => --quiet and --verbose exclude each other: give one of them
summary source.capture --part ranks=7 => source.capture has no rank 7: it has ranks 0 to 1
summary source.capture --part ranks=x => --part ranks 'x' is not a number or a range
summary source.capture --part ranks=3-1 => --part ranks=3-1: give the first rank first
summary source.capture --part from=5x => --part from '5x' is not a time
summary source.capture --part from=9s => has nothing in that window
summary source.capture --part from=2s,until=1s => the window of --part is empty
summary source.capture --part steps=0,from=1s => both choose a window
summary source.capture --part steps=5-9 => has no step of --part steps=5-9: it has steps 0 to 0
summary source.capture --part op=fly => there is no operation 'fly'
summary source.capture --part op=close => no operation with op=close: there are read, write
summary source.capture --part path=x => no file left with path='x'
summary source.capture --part step=1 => give KEY=VALUE with one of the keys ranks, from
summary source.capture --part ranks=0 --part ranks=1 => --part gives ranks twice: 0 and 1
report source.capture => Missing option '-o' / '--output': The page, such as report.html.
report source.capture bare.capture -o x.html => bare.capture is not a replay of source.capture: it was
report source.capture --floor source.capture replay.capture -o x.html => --floor needs a replay beside the capture:
demo x => 'x' is not a bundled capture: choose imagenet or cosmictagger
demo -o empty => empty exists, and the demo overwrites nothing: choose another
doctor absent => absent is not a directory: name the directory that you will
stage source.capture --target absent => the target absent does not exist: make it (or is it
stage source.capture --target twin --workers 65 => --workers 65: give 1 to 64
stage source.capture --target twin --timeout 5x => --timeout '5x' is not a time: write seconds, or a unit as in
run source.capture --target absent -o o.capture => the target absent does not exist: make it (or is it
run source.capture --target empty -o o.capture => empty/dxt-replay-twin/data/a is not staged: run `dxt-replay
run source.capture --target twin -o exists.capture --force => exists.capture exists and is not a capture (no
run source.capture --target twin -o o.capture --pace fast => --pace 'fast': choose timed, think, steps, none
run source.capture --target twin -o o.capture --speed x => Invalid value for '--speed': 'x' is not a valid float.
run source.capture --target twin -o o.capture --speed 0 => --speed 0.0 is not a number between 1e-06 and 1e+06
run source.capture --target twin -o o.capture --compute wait => --compute 'wait': choose sleep, spin
run source.capture --target twin -o o.capture --api x => --api 'x': choose auto, posix, stdio, mpiio, hdf5, s3, null,
run source.capture --target twin -o o.capture --api s3 => --api s3 needs a --target s3://BUCKET/PREFIX
run source.capture --target s3://b/x -o o.capture --api posix => --api posix needs files: on an s3:// target choose
run source.capture --target s3://b/x -o o.capture --map /a=/b => --map needs files: stage all data into the s3://
run source.capture --target twin -o o.capture --timeout 0 => --timeout 0 s: give a time above 0 and below 1e+08 s,
run source.capture --target twin -o o.capture --repeat 0 => --repeat 0: give 1 or more
run bare.capture --target twin -o o.capture --pace steps => bare.capture: rank 0: the capture has no training steps,
run damaged.darshan --target twin -o o.capture --pace steps => damaged.darshan has no training steps, which the pace
compare => give the recorded capture and its replay, or --floor A B: two
compare source.capture bare.capture => bare.capture is not a replay of source.capture: it was
compare replay.capture source.capture => replay.capture is a replay of source.capture: give the recorded
compare source.capture replay.capture --fail-under 2 => --fail-under 2: give 0 to 1
compare source.capture replay.capture --max-drift -1 => --max-drift -1: give 0 or more
compare source.capture replay.capture --floor source.capture bare.capture => source.capture has 2 ranks and
verify absent => absent: No such file or directory; give a capture, or a
verify empty => empty is neither a capture (no capture.json) nor a staged twin
regress source.capture => --baseline is missing: give --baseline DIR and --candidate DIR,
regress source.capture --baseline twin => --candidate is missing: give --baseline DIR and --candidate
regress source.capture twin --baseline twin => twin is given beside --baseline or --candidate: give TARGET
regress source.capture twin twin => which of twin and twin is which? Give --baseline DIR and
regress source.capture twin --repeats 1001 => --repeats 1001: give 1 to 1000
regress source.capture twin --repeats 3 => --repeats 3 can never find a regression: at least 6 pairs are
regress source.capture twin --report x.txt => --report x.txt: give a name that ends in .xml, .md or .html
regress source.capture twin --threshold 0 => --threshold 0: give per cent above 0, at most 1000
regress bare.capture twin --pace steps => bare.capture: rank 0: the capture has no training steps, so its
regress source.capture --baseline absent.json --candidate twin => cannot read the record absent.json
regress source.capture --baseline record.json --candidate twin => is not a record of an experiment
regress source.capture twin --map x => --map 'x': give PREFIX=DIR, baseline:PREFIX=DIR
history absent.json => cannot read the record absent.json: No such file or directory
history record.json => record.json is not a record of an experiment: give a file that
history empty => no record of an experiment in empty: `dxt-replay regress
merge absent.darshan -o o.capture => absent.darshan cannot be read: No such file or directory
merge damaged.darshan -o o.capture => damaged.darshan is not a Darshan log (no magic number): give a
merge empty -o o.capture => empty holds no .darshan log: check that the job ended, and that
merge damaged.darshan --profile empty -o o.capture => empty holds neither an .xplane.pb nor a .pt.trace.json profile:
merge damaged.darshan --align x -o o.capture => --align 'x': give auto, anchors, nesting, wall, or a number of
merge damaged.darshan --map /a=/b -o o.capture => --map (maps) says where --inspect (inspect) looks: give
merge damaged.darshan --each --align wall -o o => --align speaks of one job: leave --each out, or merge that job
generate => WORKLOAD is missing; dxt-replay generate --list prints the
generate unet3d_h100 => --ranks is missing; dxt-replay generate --list prints the
generate unet3d_h100 --ranks 2 => -o OUT.capture is missing; dxt-replay generate --list prints
generate unet3d_h10 --ranks 2 -o o.capture => unet3d_h10 is neither a file nor a shipped workload: did you
generate unet3d_h100 --ranks 0 -o o.capture => --ranks 0: give 1 or more
generate unet3d_h100 --ranks 2 --seed -1 -o o.capture => --seed -1: give 0 or more
generate unet3d_h100 --ranks 2 --device x -o o.capture => --device x: 'x' is not a property of a device; give null, or
generate absent.yaml --ranks 2 -o o.capture => absent.yaml is neither a file nor a shipped workload:
transform source.capture -o o.capture --chunk x => --chunk 'x' is not a size: write bytes, or a unit as in 64KiB
transform source.capture -o o.capture --compression x => --compression 'x': write NAME:RATIO or NAME:RATIO:SPEED, such
transform source.capture -o o.capture --transfer-size x => --transfer-size 'x' is not a size: write bytes, or a unit
transform source.capture -o o.capture --readers -1 => --readers -1 is not a number from 0 to 4096
transform source.capture -o o.capture --ranks 0 => --ranks 0 is not a number from 1 to 1048576
transform source.capture -o o.capture --weak => --weak says how --ranks changes the work: give --ranks, too
transform source.capture -o o.capture --compute-speed 0 => --compute-speed 0.0 is not a number between 1e-06 and 1e+06
transform source.capture -o o.capture => nothing to change: give at least one of --chunk, --compression,
simulate source.capture --storage x => the storage model x cannot be read (No such file or directory):
simulate source.capture --storage text.txt => text.txt: the document is not a mapping of keys to values
simulate source.capture --storage nvme --ranks 0 => --ranks '0': give numbers of ranks, such as 128,256,...,8192
simulate source.capture --storage nvme --ranks 4,2,...,1 => --ranks '4,2,...,1': the numbers around ... must ascend
simulate source.capture --storage nvme --strong => strong scaling needs numbers of ranks: --ranks 2,4,8
simulate source.capture --storage nvme --speed 0 => --speed 0.0 is not a number between 1e-06 and 1e+06
simulate damaged.darshan --storage nvme => damaged.darshan has no training steps, which the pace steps
calibrate --target twin -o m.json --minutes 0 => a calibration of 0 minutes is not possible: give 0.017 to 1440
capacity unet3d_h10 --target twin => unet3d_h10 is neither a capture nor a workload: did you mean
capacity source.capture x=1 --target twin => source.capture is a capture: KEY=VALUE is for workloads
capacity source.capture --target twin --utilisation 0 => --utilisation 0: give a number between 0 and 100
capacity source.capture --target twin --most 0 => --most 0: give 1 to 65536
capacity source.capture --target twin -o twin => twin is not empty: give a directory that is empty or does not
export source.capture --to xls -o x => --to 'xls': choose darshan, chrome, csv, fio
export source.capture --to fio -o x => --to fio needs --target DIR: the directory that `dxt-replay
export source.capture --to csv --target twin -o x.csv => --target is for --to fio, not for --to csv: leave it out
export source.capture --to darshan -o - => --output - is for --to csv without --json: give a file name
export source.capture -o x.png => its suffix names no format: give --to darshan
fit source.capture -o x.yaml --batch 0 => --batch 0: give 1 or more
fit source.capture -o x.yaml --fail-under 101 => --fail-under 101: give 0 to 100
anonymize source.capture --key-file absent -o a.capture => --key-file absent cannot be read: No such file or directory
anonymize source.capture --key-file key -o a.capture => --key-file key holds no key, or more than 1 MiB: write 32
record -o o.capture -- absent-program => absent-program was not found: give the command as you would
record --with x -- true => --with 'x': choose darshan, strace, dftracer, requests, marks
record --memory 1901 -- true => --memory 1901: give 1 to 1900
"""
"""A command line, and what its error says."""


@pytest.mark.parametrize("row", REFUSED.strip().splitlines())
def test_a_wrong_command_line_is_refused_in_one_sentence(row, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    line, _, sentence = row.partition(" => ")
    assert main(shlex.split(line)) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err.splitlines()[0].replace(f"{folder}/", "")
    assert printed.err.startswith("dxt-replay: error: ")
    assert printed.out == ""
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("line", "kind", "hint"),
    [
        ("summary nothing.capture --json", "CaptureError", False),
        ("compare a b --json --fail-under 2", "UsageError", True),
        ("compare --json", "UsageError", True),
        ("stage --json x", "UsageError", True),
        ("export a.capture --to csv -o - --json", "UsageError", False),
    ],
)
def test_an_error_under_json_is_one_object(line, kind, hint, say):
    document = say(line, status=2)
    assert (document["schema_version"], document["error"]["type"]) == (1, kind)
    assert document["error"]["message"] in say.err
    assert ("hint" in document["error"]) == hint


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_is_short_and_its_old_options_answer_with_the_new_ones(name, say):
    lines = say(f"{name} --help").splitlines()
    assert lines[0].startswith(f"Usage: dxt-replay {name}")
    assert len(lines) <= 35
    for option, now in old_options(name).items():
        say(f"{name} x {option} 1", status=2)
        assert f"error: {option} is now {now}\n" in say.err


@pytest.mark.parametrize(
    ("variable", "answer"),
    [
        ("RUN_STEPS", "--steps is now --part steps=..."),
        ("SIMULATE_BEGIN", "--from is now --part from=..."),
        ("SUMMARY_PARQUET_FILE", "--parquet is now -o FILE.parquet"),
        ("REGRESS_BASELINE_MAPS", "--baseline-map is now --map baseline:PREFIX=DIR"),
    ],
)
def test_an_option_of_an_earlier_release_is_refused_in_the_environment_too(variable, answer, say, monkeypatch):
    monkeypatch.setenv(f"DXT_REPLAY_{variable}", "1")
    say(f"{variable.partition('_')[0].lower()} x", status=2)
    assert f"DXT_REPLAY_{variable} is set, and {answer}" in say.err
