"""The journal: what writers leave, what readers find, whatever was rotated, forgotten or cut off in between."""

import itertools
import json
import os
import stat
import threading
from pathlib import Path

import pytest

from oaken_jobs.journal import Follow, Journal
from oaken_jobs.views import iso

DAY = 86_400_000


def line(number: int, size: int = 0) -> bytes:
    return f"{number:06d}{'x' * size}".encode()


def at(ms: int, text: str = "") -> bytes:
    return json.dumps({"ts": iso(ms), "text": text}).encode()


def write(journal: Journal, *lines: bytes) -> None:
    with journal.lock():
        journal.append(b"".join(one + b"\n" for one in lines))


def files(journal: Journal) -> dict[str, int]:
    """Name and number of lines of each file."""
    names = (path for path in journal.path.parent.iterdir() if path.suffix != ".lock")
    return {path.name: path.read_bytes().count(b"\n") for path in sorted(names)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "j.jsonl"


def test_what_is_appended_is_read_back_in_both_directions(path: Path) -> None:
    journal = Journal(path, 1000, 2)
    write(journal, b"a", b"b")
    write(journal, b"c")
    assert list(journal.lines()) == [b"a", b"b", b"c"]
    assert list(journal.backwards()) == [b"c", b"b", b"a"]
    assert journal.tail(2) == [b"b", b"c"]
    assert journal.last_line() == b"c"


def test_a_journal_that_was_never_written_is_empty(path: Path) -> None:
    journal = Journal(path, 1000, 2)
    assert journal.last_line() is None
    assert journal.tail(5) == list(journal.lines()) == []
    journal.forget(DAY)
    assert Follow(journal).read(5) == []
    assert list(path.parent.iterdir()) == [], "reading and forgetting leave nothing behind"


def test_files_are_rotated_by_size_and_the_oldest_is_dropped(path: Path) -> None:
    journal = Journal(path, 21, 2)  # three lines of seven bytes
    for number in range(11):
        write(journal, line(number))
    assert files(journal) == {"j.jsonl": 2, "j.jsonl.1": 3, "j.jsonl.2": 3}
    assert list(journal.lines()) == [line(n) for n in range(3, 11)]
    assert journal.tail(5) == [line(n) for n in range(6, 11)]


def test_many_lines_at_once_fill_files_as_single_lines_do(path: Path) -> None:
    journal = Journal(path, 21, 9)
    write(journal, *(line(n) for n in range(11)))
    assert files(journal) == {"j.jsonl": 2, "j.jsonl.1": 3, "j.jsonl.2": 3, "j.jsonl.3": 3}


def test_without_backups_the_old_file_is_dropped(path: Path) -> None:
    journal = Journal(path, 21, 0)
    write(journal, *(line(n) for n in range(4)))
    assert files(journal) == {"j.jsonl": 1}


def test_a_line_longer_than_a_file_may_be_has_a_file_of_its_own(path: Path) -> None:
    journal = Journal(path, 20, 5)
    long = line(1, 300_000)
    write(journal, b"a", long, b"b")
    assert files(journal) == {"j.jsonl": 1, "j.jsonl.1": 1, "j.jsonl.2": 1}
    assert list(journal.backwards()) == [b"b", long, b"a"]
    assert list(journal.lines()) == [b"a", long, b"b"]


def test_lines_of_all_lengths_are_read_alike_from_both_ends(path: Path) -> None:
    journal = Journal(path, 10_000_000, 1)
    lines = [line(n, size) for n, size in enumerate([0, 65_528, 65_529, 65_530, 131_066, 5, 700_000, 0, 65_529, 1])]
    write(journal, *lines)
    assert list(journal.lines()) == lines
    assert list(journal.backwards()) == lines[::-1]
    follow = Follow(journal, back=4)
    assert follow.read(99) == lines[-4:]
    follow.close()


def test_a_line_that_was_not_finished_is_passed_over_and_cut_off_by_the_next_writer(path: Path) -> None:
    journal = Journal(path, 1000, 2)
    write(journal, b"a")
    with path.open("ab") as file:
        file.write(b"half of a li")
    assert list(journal.lines()) == list(journal.backwards()) == [b"a"]
    write(journal, b"b")
    assert path.read_bytes() == b"a\nb\n"


def test_the_last_line_is_found_although_the_newest_file_is_missing_or_empty(path: Path) -> None:
    journal = Journal(path, 1000, 2)
    write(journal, b"a")
    path.rename(path.with_name("j.jsonl.1"))
    assert journal.last_line() == b"a"
    path.touch()
    assert journal.last_line() == b"a"
    path.write_bytes(b"unfinished")
    assert journal.last_line() == b"a"


def test_a_rotation_goes_on_where_a_killed_process_left_it_and_costs_no_file(path: Path) -> None:
    journal = Journal(path, 7, 3)
    write(journal, *(line(n) for n in range(3)))
    path.with_name("j.jsonl.2").rename(path.with_name("j.jsonl.3"))
    path.with_name("j.jsonl.1").rename(path.with_name("j.jsonl.2"))  # killed here
    assert list(journal.lines()) == [line(n) for n in range(3)]
    write(journal, line(3))
    assert list(journal.lines()) == [line(n) for n in range(4)]


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
def test_files_and_lock_are_the_owners_alone_also_those_that_were_open_to_others(path: Path) -> None:
    path.touch(0o644)
    journal = Journal(path, 50, 2)
    write(journal, *(at(n * DAY) for n in range(9)))
    journal.forget(6 * DAY)
    modes = {found.name: stat.S_IMODE(found.stat().st_mode) for found in path.parent.iterdir()}
    assert set(modes.values()) == {0o600}
    assert {"j.jsonl", "j.jsonl.1", "j.jsonl.lock"} <= modes.keys()


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="the system has no O_NOFOLLOW")
def test_a_link_in_place_of_the_file_is_not_written_through(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"mine")
    path.symlink_to(other)
    with pytest.raises(OSError, match=r"j\.jsonl"):
        write(Journal(path, 1000, 2), b"a")
    assert other.read_bytes() == b"mine"


def test_a_lock_that_another_holds_is_not_had_at_once(path: Path) -> None:
    one, other = Journal(path, 1000, 2), Journal(path, 1000, 2)
    with one.lock(), other.try_lock() as held:
        assert not held
    with other.try_lock() as held:
        assert held


def test_threads_of_one_process_keep_each_other_out(path: Path) -> None:
    journal = Journal(path, 1000, 2)
    seen: list[bool] = []

    def attempt() -> None:
        with journal.try_lock() as held:
            seen.append(held)

    with journal.lock():
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
    assert seen == [False]


def test_followers_go_on_across_rotations(path: Path) -> None:
    journal = Journal(path, 21, 9)
    write(journal, line(0), line(1))
    follow = Follow(journal)
    assert follow.read(9) == []
    write(journal, line(2))
    assert follow.read(9) == [line(2)]
    write(journal, *(line(n) for n in range(3, 12)))  # three rotations
    assert follow.read(2) == [line(3), line(4)]
    assert follow.read(99) == [line(n) for n in range(5, 12)]
    assert follow.read(9) == []
    follow.close()


def test_a_follower_that_began_with_nothing_gets_all(path: Path) -> None:
    journal = Journal(path, 7, 9)
    follow = Follow(journal, back=3)
    write(journal, line(0), line(1))
    assert follow.read(9) == [line(0), line(1)]
    follow.close()


def test_a_follower_may_begin_before_the_end_also_in_an_older_file(path: Path) -> None:
    journal = Journal(path, 21, 9)
    write(journal, *(line(n) for n in range(7)))
    for back, expected in ((0, 0), (1, 1), (5, 5), (7, 7), (99, 7)):
        follow = Follow(journal, back=back)
        assert follow.read(99) == [line(n) for n in range(7 - expected, 7)]
        follow.close()


def test_a_follower_of_a_file_that_was_dropped_goes_on_with_the_oldest_there_is(path: Path) -> None:
    journal = Journal(path, 7, 2)
    write(journal, line(0))
    follow = Follow(journal, back=1)
    write(journal, *(line(n) for n in range(1, 4)))
    assert follow.read(99) == [line(n) for n in range(4)]  # 0 from the file it has kept open
    follow.close()


def test_a_line_is_not_given_to_a_follower_before_it_is_whole(path: Path) -> None:
    journal = Journal(path, 1000, 2)
    write(journal, b"a")
    follow = Follow(journal)
    with path.open("ab") as file:
        file.write(b"of a killed process")
    assert follow.read(9) == []
    write(journal, b"b")
    assert follow.read(9) == [b"b"]
    follow.close()


def test_lines_before_a_moment_are_forgotten_and_no_others(path: Path) -> None:
    for moment in range(12):
        journal = Journal(path, 200, 9)
        write(journal, *(at(n * DAY, "text") for n in range(10)))
        assert len(files(journal)) > 2
        journal.forget(moment * DAY)
        assert list(journal.lines()) == [at(n * DAY, "text") for n in range(moment, 10)]
        write(journal, at(20 * DAY))
        assert journal.last_line() == at(20 * DAY)
        for name in files(journal):
            path.with_name(name).unlink()


@pytest.mark.parametrize("backups", [0, 1, 9])
@pytest.mark.parametrize("moment", [0, 2, 4, 6])
def test_followers_lose_and_repeat_nothing_when_lines_are_forgotten(path: Path, backups: int, moment: int) -> None:
    journal = Journal(path, 10_000, backups)
    write(journal, *(at(n * DAY) for n in range(5)))
    follow = Follow(journal)
    behind = Follow(journal, back=2)
    journal.forget(moment * DAY)
    journal.forget(min(moment, 3) * DAY)
    write(journal, at(8 * DAY), at(9 * DAY))
    assert follow.read(99) == [at(8 * DAY), at(9 * DAY)]
    assert behind.read(99) == [at(n * DAY) for n in (3, 4, 8, 9)]
    follow.close()
    behind.close()


def test_what_a_killed_process_left_of_forgetting_is_removed(path: Path) -> None:
    journal = Journal(path, 1000, 2)
    write(journal, at(0), at(DAY))
    path.with_name("j.jsonl.tmp").write_bytes(b"left")
    journal.forget(DAY)
    assert list(journal.lines()) == [at(DAY)]
    assert "j.jsonl.tmp" not in files(journal)


@pytest.mark.parametrize("backups", [0, 1, 3])
def test_forgetting_drops_what_comes_before_the_first_line_to_be_kept_whatever_the_clock_did(
    path: Path, backups: int
) -> None:
    for times in itertools.product((1, 9), repeat=6):
        for left in path.parent.iterdir():
            left.unlink()
        journal = Journal(path, 120, backups)
        for number, day in enumerate(times):
            write(journal, at(day * DAY, f"{number:03d}"))
        there = list(journal.lines())
        journal.forget(5 * DAY)
        first = next((n for n, one in enumerate(there) if b"1970-01-10" in one), len(there))
        assert list(journal.lines()) == there[first:], times


@pytest.mark.parametrize("giant", [0, 1, 2])
def test_a_line_that_is_longer_than_any_of_ours_is_passed_over_by_every_reader(
    path: Path, monkeypatch: pytest.MonkeyPatch, giant: int
) -> None:
    monkeypatch.setattr("oaken_jobs.journal.MAX_LINE", 150_000)
    journal = Journal(path, 10_000_000, 2)
    written = [at(1 * DAY), at(2 * DAY)]
    follow = Follow(journal)
    write(journal, *written[:giant], b"x" * 1_000_000, *written[giant:])
    assert list(journal.lines()) == written
    assert list(journal.backwards()) == written[::-1]
    assert journal.last_line() == written[-1]
    assert follow.read(9) == written
    write(journal, at(3 * DAY))
    assert follow.read(9) == [at(3 * DAY)]
    follow.close()
    journal.forget(2 * DAY)
    assert list(journal.lines()) == [at(2 * DAY), at(3 * DAY)]


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices are POSIX")
@pytest.mark.parametrize("what", ["pipe", "device", "folder"])
@pytest.mark.parametrize("place", ["j.jsonl", "j.jsonl.1"])
def test_what_is_no_regular_file_is_neither_read_nor_written_and_keeps_nobody_waiting(
    path: Path, what: str, place: str
) -> None:
    taken = path.with_name(place)
    match what:
        case "pipe":
            os.mkfifo(taken)
        case "device":
            taken.symlink_to("/dev/zero")
        case _:
            taken.mkdir()
    journal = Journal(path, 10, 2)
    with pytest.raises(OSError, match=r"regular file|directory|symbolic"):
        write(journal, b"a") if place == path.name else journal.last_line()
    for act in (journal.last_line, lambda: list(journal.lines()), lambda: Follow(journal), lambda: journal.forget(DAY)):
        with pytest.raises(OSError, match=r"regular file|directory"):
            act()
