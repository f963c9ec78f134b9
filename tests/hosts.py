"""Hosts with addresses of their own on one network, each of which can be cut off: network namespaces, for Linux and root.

Namespaces live as long as processes in them. Each has one that waits for the end of its input, so that all of them are gone with
the process that made them, however it ends.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys

PATIENCE = 20.0


def missing() -> str | None:
    """Why there can be no hosts here; None where there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces are for root on Linux"
    if not all(shutil.which(program) for program in ("ip", "unshare", "nsenter")):
        return "network namespaces need ip, unshare and nsenter"
    tried = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "name", "tried", "type", "bridge"], capture_output=True
    )
    return (
        None if tried.returncode == 0 else f"network namespaces are not allowed here: {tried.stderr.decode().strip()}"
    )


class Host:
    """One host. `address` is its own; the others and the test reach it there, and it them."""

    def __init__(self, address: str, link: str) -> None:
        self.address = address
        self._link = link
        self._space = _Space()

    def command(self, *command: str) -> list[str]:
        """What runs the command on this host, in the same process."""
        return self._space.command(*command)


class Hosts:
    """A network of hosts.

    with Hosts() as hosts:
        one, two = hosts.add(), hosts.add()
        subprocess.Popen(one.command("oaken", "serve", "--host", one.address))
        hosts.cut(one)
    """

    def __init__(self) -> None:
        self._net = f"198.18.{random.randint(0, 255)}"  # which is for measuring networks, and is nobody's
        self._hosts: list[Host] = []
        self._own = f"oaken{os.getpid()}"
        self.address = f"{self._net}.1"
        """That of the test itself."""

    def __enter__(self) -> Hosts:
        self._switch = _Space()
        self._switch.run("ip", "link", "add", "name", "switch", "type", "bridge")
        self._switch.run("ip", "link", "set", "switch", "up")
        _run("ip", "link", "add", self._own, "type", "veth", "peer", "name", "test", "netns", self._switch.name)
        self._plug("test")
        _run("ip", "address", "add", f"{self.address}/24", "dev", self._own)
        _run("ip", "link", "set", self._own, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts:
            host._space.end()
        self._switch.end()
        subprocess.run(["ip", "link", "delete", self._own], capture_output=True)  # goes by itself, but later

    def add(self) -> Host:
        """One more host, on the network."""
        number = len(self._hosts) + 2
        host = Host(f"{self._net}.{number}", f"host{number}")
        self._hosts.append(host)
        space = host._space
        names = ("peer", "name", host._link, "netns", self._switch.name)
        _run("ip", "link", "add", "eth0", "netns", space.name, "type", "veth", *names)
        self._plug(host._link)
        space.run("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
        space.run("ip", "link", "set", "eth0", "up")
        return host

    def cut(self, host: Host) -> None:
        """Nothing gets to this host or away from it any more. Nobody is told."""
        self._switch.run("ip", "link", "set", host._link, "down")

    def join(self, host: Host) -> None:
        """Everything gets to it again."""
        self._switch.run("ip", "link", "set", host._link, "up")

    def part(self, one: Host, other: Host) -> None:
        """These two do not reach each other any more, and are not told; both reach all others."""
        for here, there in ((one, other), (other, one)):
            nobody = ("lladdr", "02:00:00:00:00:00", "nud", "permanent")
            here._space.run("ip", "neighbour", "replace", there.address, "dev", "eth0", *nobody)

    def reunite(self, one: Host, other: Host) -> None:
        """They reach each other again."""
        for here, there in ((one, other), (other, one)):
            here._space.run("ip", "neighbour", "delete", there.address, "dev", "eth0")

    def _plug(self, link: str) -> None:
        self._switch.run("ip", "link", "set", link, "master", "switch")
        self._switch.run("ip", "link", "set", link, "up")


class _Space:
    """A network namespace, with a process that keeps it."""

    def __init__(self) -> None:
        keeping = "ip link set lo up && echo && exec cat"
        self._keeper = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", keeping],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the tests
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline() == b"\n", "no namespace"

    @property
    def name(self) -> str:
        """By which `ip` knows it."""
        return str(self._keeper.pid)

    def command(self, *command: str) -> list[str]:
        return ["nsenter", "--target", self.name, "--net", *command]

    def run(self, *command: str) -> None:
        _run(*self.command(*command))

    def end(self) -> None:
        self._keeper.communicate(timeout=PATIENCE)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
