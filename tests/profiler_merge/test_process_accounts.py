"""Which processes read more than their logs explain, on made-up accounts."""

from __future__ import annotations

import pytest

from dxt_replay.profiler_merge.process_accounts import Account, not_accounted

MIB = 1 << 20


def accounts(*pids: int | None, read: int = 0, **more: bool) -> list[Account]:
    return [Account(pid=pid, program="python", ranks=1, read=read, written=0, **more) for pid in pids]


def check(accounts: list[Account], began: dict[str, list[int]], read: int, written: int = 0, received: int = 0, **fed):
    return not_accounted(accounts, began=began, read=read, written=written, received=received, fed=fed)


def test_a_job_whose_logs_explain_all_is_accounted_for() -> None:
    assert check(accounts(1, 2, read=100 * MIB), {"python": [1, 2]}, 200 * MIB) == []


@pytest.mark.parametrize(("read", "found"), [(MIB // 2, []), (2 * MIB, ["cat (2 processes)", "static"])])
def test_processes_without_a_log_may_have_read_little(read: int, found: list[str]) -> None:
    began = {"python": [1], "cat": [2, 3], "static": [4]}
    assert check(accounts(1, read=100 * MIB), began, 100 * MIB + read) == found


def test_what_was_read_past_a_log_is_seen() -> None:
    assert check(accounts(1, read=MIB), {"python": [1]}, 5 * MIB) == ["processes with a log"]


def test_bytes_on_pipes_and_sockets_are_taken_off_where_all_processes_have_logs() -> None:
    assert check(accounts(1, 2, read=MIB), {"python": [1, 2]}, 12 * MIB, written=6 * MIB, received=4 * MIB) == []
    assert check(accounts(1, read=MIB), {"python": [1, 2]}, 12 * MIB, written=6 * MIB, received=5 * MIB) == ["python"]


def test_input_from_a_file_is_seen_although_as_much_was_written() -> None:
    known = accounts(1, 2, read=MIB)
    assert check(known, {"sh": [1], "dd": [2]}, 12 * MIB, written=12 * MIB) == []
    assert check(known, {"sh": [1], "dd": [2]}, 12 * MIB, written=12 * MIB, dd=10 * MIB) == ["dd"]
    assert check(known, {"sh": [1], "dd": [2]}, 12 * MIB, written=12 * MIB, dd=100) == []


def test_a_pipe_has_two_ends() -> None:
    def job(start_ns: int) -> list[str]:
        times = ((1, 1, 5), (2, start_ns, 9))
        known = [
            Account(pid=pid, ranks=1, read=MIB, written=0, start_ns=begin, end_ns=end) for pid, begin, end in times
        ]
        return check(known, {"dd": [1, 2]}, 12 * MIB, written=12 * MIB)

    assert (job(4), job(6)) == ([], ["processes with a log"])


def test_what_a_python_imports_may_be_unknown() -> None:
    assert check(accounts(1, imports=True), {"python": [1]}, 30 * MIB) == []
    assert check(accounts(1), {"python": [1]}, 30 * MIB) == ["processes with a log"]


def test_a_log_that_does_not_name_its_process_is_that_of_any_of_its_program() -> None:
    assert check(accounts(1, None, read=2 * MIB), {"python": [1, 2]}, 4 * MIB) == []
    assert check(accounts(1, None, read=2 * MIB), {"python": [1, 2, 3]}, 8 * MIB) == ["python"]
    assert check(accounts(1, None, read=2 * MIB), {"python": [1], "cat": [2]}, 8 * MIB) == ["cat"]


def test_logs_of_other_machines_explain_more_than_was_read_here() -> None:
    assert check(accounts(1, 2, read=100 * MIB), {"python": [1]}, 100 * MIB) == []
