"""Lines of strace in all their forms."""

import pytest

from dxt_replay.profiler_merge.tracers.strace.strace_lines import LineReader, unescape

T = 1_795_306_000


def reader(tid=0):
    return LineReader(lambda name: True, tid)


@pytest.mark.parametrize(
    ("line", "tid"),
    [
        (b'17 1795306000.5 read(3</d/a>, ""..., 10) = 4 <0.000012>', 17),
        (b'17  1795306000.500000 read(3</d/a>, ""..., 10)    = 4 <0.000012>', 17),
        (b'[pid    17] 1795306000.500000000 read(3</d/a>, "a) = 9", 10) = 4 <0.000012000>', 17),
        (b'1795306000.500 read(3</d/a>, "(", 10) = 4 <0.000012>', 5),
    ],
)
def test_a_call(line, tid):
    call = reader(5).call(line.replace(b".5 ", b".500 "))
    assert (call.tid, call.name, call.result) == (tid, b"read", 4)
    assert (call.start_ns, call.end_ns - call.start_ns) == (T * 10**9 + 500_000_000, 12_000)
    assert call.arguments.startswith(b"3</d/a>")


def test_results():
    lines = reader()
    opened = lines.call(b'1795306000.500 openat(AT_FDCWD</d>, "a", O_RDONLY) = 15</d/a\\76b> <0.1>')
    assert (opened.result, unescape(opened.path)) == (15, b"/d/a>b")
    failed = lines.call(b'1795306000.500 open("/d/a) = 3", 0) = -1 ENOENT (No such file or directory) <0.1>')
    assert failed.result == -1
    mapped = lines.call(b"1795306000.500 mmap(NULL, 8, PROT_READ, MAP_SHARED, 3</d/a>, 0) = 0x7f00 <0.1>")
    assert mapped.result == 0x7F00
    flags = lines.call(b"1795306000.500 fcntl(3</d/a>, F_GETFD) = 0x1 (flags FD_CLOEXEC) <0.1>")
    assert flags.result == 1
    assert lines.call(b"1795306000.500 exit_group(0) = ?") is None
    assert not lines.call(b'1795306000.500 read(3</d/a>, "", 1) = 0').timed
    assert lines.damaged == 0


def test_an_unfinished_call_has_its_start_and_its_result():
    lines = reader()
    assert lines.call(b"7 1795306000.100 read(3</d/a>,  <unfinished ...>") is None
    assert lines.call(b"8 1795306000.200 read(3</d/a>,  <unfinished ...>") is None
    call = lines.call(b'7 1795306000.300 <... read resumed>""..., 99) = 9 <0.200000>')
    assert (call.tid, call.start_ns, call.end_ns) == (7, T * 10**9 + 10**8, T * 10**9 + 3 * 10**8)
    assert call.arguments == b'3</d/a>,""..., 99'
    assert lines.call(b'9 1795306000.300 <... read resumed>""..., 99) = 9 <0.2>') is None
    assert lines.damaged == 0


def test_what_is_no_call():
    lines = reader()
    assert lines.call(b"17 1795306000.1234 +++ exited with 0 +++") == 17
    assert lines.call(b"17 1795306000.1234 --- SIGCHLD {si_signo=SIGCHLD} ---") is None
    assert lines.call(b"strace: Process 18 attached") is None
    assert lines.call(b"") is None
    assert lines.damaged == 0
    assert lines.call(b"17 17953060 rubbish") is None
    assert lines.call(b'17 1795306000.1234 read(3</d/a>, ""..., 10) = ') is None
    assert lines.damaged == 2


def test_octal_and_letters():
    assert unescape(rb"/d/\303\251\74\n\\\"") == b'/d/\xc3\xa9<\n\\"'
