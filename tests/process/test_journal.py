"""Processes that write one journal and are killed with SIGKILL at any moment: no line that was whole is lost, none is there twice."""

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from oaken_jobs.journal import Follow, Journal

KILLS = 25
BYTES, FILES = 5_000, 1_000


def write_until_killed(path: Path, name: int, told: Connection) -> None:
    journal = Journal(path, BYTES, FILES)
    number = 0
    while True:
        lines = [f"{name}:{number + n}:{'x' * (number % 90)}" for n in range(1 + number % 4)]
        with journal.lock():
            journal.append("".join(f"{line}\n" for line in lines).encode())
        number += len(lines)
        told.send(number)


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX")
def test_writers_killed_at_any_moment_lose_and_repeat_no_line(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path, BYTES, FILES)
    fork = multiprocessing.get_context("forkserver")
    fork.set_forkserver_preload(["tests.process.test_journal"])
    rng = random.Random(7)
    follow = Follow(journal)
    followed: list[bytes] = []
    told: dict[int, int] = {}
    for name in range(0, KILLS * 2, 2):
        victims = []
        for each in (name, name + 1):
            here, there = fork.Pipe(duplex=False)
            process = fork.Process(target=write_until_killed, args=(path, each, there))
            process.start()
            there.close()
            victims.append((each, process, here))
        for each, _, here in victims:
            told[each] = here.recv()  # it is at work
        time.sleep(rng.uniform(0, 0.02))  # the moment of the kill, not a wait for something
        for _, process, _ in victims:
            os.kill(process.pid, signal.SIGKILL)
        for each, process, here in victims:
            process.join()
            while True:
                try:
                    told[each] = here.recv()
                except EOFError:
                    break
            here.close()
        followed += follow.read(1_000_000)
    lines = [line.split(b":") for line in journal.lines()]
    found = Counter((int(name), int(number)) for name, number, _ in lines)
    assert set(found.values()) == {1}
    for name, count in told.items():
        numbers = sorted(number for one, number in found if one == name)
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= count
    assert followed == list(journal.lines()) == list(journal.backwards())[::-1]
    follow.close()
