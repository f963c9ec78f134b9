"""Hosts that tests cut off from each other."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests import hosts, postgres
from tests.hosts import Host, Hosts
from tests.postgres import Server

MISSING = hosts.missing()
pytestmark = pytest.mark.skipif(bool(MISSING), reason=str(MISSING))

ECHO = """
import socket, sys
listening = socket.create_server((sys.argv[1], 9))
print("ready", flush=True)
while True:
    listening.accept()[0].sendall(b"hello")
"""
ASK = "import socket, sys; print(socket.create_connection((sys.argv[1], 9), 1).recv(5).decode(), end='')"


@pytest.fixture
def network() -> Iterator[Hosts]:
    with Hosts() as found:
        yield found


def serving(host: Host) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        host.command(sys.executable, "-c", ECHO, host.address), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def ask(host: Host, seconds: float = 5) -> bytes:
    with socket.create_connection((host.address, 9), seconds) as connection:
        return connection.recv(5)


def test_a_host_is_reached_at_its_address_from_the_test_and_from_others_until_it_is_cut_off(network: Hosts) -> None:
    one, two = network.add(), network.add()
    server = serving(one)
    try:
        assert ask(one) == b"hello"
        asking = two.command(sys.executable, "-c", ASK, one.address)
        assert subprocess.run(asking, capture_output=True, timeout=20).stdout == b"hello"
        network.cut(one)
        with pytest.raises(TimeoutError):  # nobody says no
            ask(one, 0.3)
        network.join(one)
        assert ask(one, 20) == b"hello"
    finally:
        server.kill()
        server.communicate()


def test_two_hosts_that_are_parted_still_reach_all_others(network: Hosts) -> None:
    one, two, three = network.add(), network.add(), network.add()
    server = serving(one)
    asks = {host: host.command(sys.executable, "-c", ASK, one.address) for host in (two, three)}
    try:
        network.part(one, two)
        assert b"TimeoutError" in subprocess.run(asks[two], capture_output=True, timeout=30).stderr
        assert subprocess.run(asks[three], capture_output=True, timeout=30).stdout == b"hello"
        assert ask(one) == b"hello"
        network.reunite(one, two)
        assert subprocess.run(asks[two], capture_output=True, timeout=30).stdout == b"hello"
    finally:
        server.kill()
        server.communicate()


@pytest.mark.skipif(bool(postgres.missing_binaries()), reason=str(postgres.missing_binaries()))
async def test_a_postgresql_of_another_host_is_not_heard_of_while_it_is_cut_off(network: Hosts) -> None:
    host = network.add()
    with Server(host=host) as server:
        server.start()
        assert f"@{host.address}:" in server.url
        connection = await asyncpg.connect(server.url)
        network.cut(host)
        with pytest.raises(TimeoutError):
            await connection.fetchval("select 1", timeout=0.3)
        with pytest.raises(TimeoutError):
            await asyncpg.connect(server.url, timeout=0.3)
        network.join(host)
        connection.terminate()
        connection = await asyncpg.connect(server.url, timeout=20)
        assert await connection.fetchval("select 1") == 1
        await connection.close()


def test_what_runs_on_a_host_has_no_other_network(network: Hosts) -> None:
    host = network.add()
    shown = subprocess.run(host.command("ip", "-brief", "address"), capture_output=True, text=True, check=True).stdout
    assert {line.split("@")[0].split()[0] for line in shown.splitlines()} == {"lo", "eth0"}
    assert host.address in shown


def test_nothing_is_left_of_a_network_whose_process_was_killed() -> None:
    program = (
        "from tests.hosts import Hosts\n"
        "with Hosts() as hosts:\n"
        "    hosts.add()\n"
        "    print(hosts._own, flush=True)\n"
        "    input()\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert owner.stdout is not None
    link = Path("/sys/class/net") / owner.stdout.readline().strip()
    assert link.exists()
    owner.kill()
    owner.communicate(timeout=20)
    deadline = time.monotonic() + 20
    while link.exists():
        assert time.monotonic() < deadline, "its interface is still there"
        time.sleep(0.01)
