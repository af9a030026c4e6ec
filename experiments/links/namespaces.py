"""A slow network inside this machine: network namespaces on a bridge, each link limited by `tc`.

    worker 0: eth0 --- link0 \
    worker 1: eth0 --- link1 -- bridge
    worker 2: eth0 --- link2 /

Namespaces carry the PID of the process that owns them. A second process clears them away when the owner
has ended, however it did: run as `python -m experiments.links.namespaces PID`, it waits for the end of
its standard input, which is the owner's.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

UNLIMITED = "unlimited"
DEVICE = "eth0"
"""The network device of a worker, as seen in its namespace."""

_PREFIX = "gossip"
_HOSTS = Path("/etc/netns")  # `ip netns exec` puts what is in NAMESPACE/ there in the place of /etc/
_QUEUE = "50ms"  # a packet that would wait longer is dropped
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def bits_per_second(rate: str) -> float:
    """Of a rate such as 100mbit, or of "unlimited"; ValueError where it is none."""
    if rate == UNLIMITED:
        return float("inf")
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    if not found or not 1e5 <= float(found[1]) * _UNITS[found[2]] <= 1e11:
        raise ValueError(
            f"--rate must be {UNLIMITED} or a number with kbit, mbit or gbit, from 100kbit to 100gbit; "
            f"got {rate!r}"
        )
    return float(found[1]) * _UNITS[found[2]]


def require_tools() -> None:
    """Raises OSError, and says what to do, where namespaces cannot be made here."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise OSError(
            f"a slow network is made with {' and '.join(missing)}, which this machine lacks: install "
            f"iproute2 (Debian: apt-get install iproute2)"
        )
    if os.geteuid() != 0:
        raise OSError("a slow network is made of network namespaces, which only root can make")


@contextlib.contextmanager
def network(num_workers: int, rate: str) -> Iterator[list[str]]:
    """A namespace for each worker, all on one bridge, with a limit for each direction of a link.

    Yields:
      What to put before a command to have it run as worker 0, 1, ... Worker i has the address
      `address(i)`, and it is what the host's name means there.

    Raises:
      OSError: it cannot be made. What was made of it goes.
    """
    require_tools()
    bits_per_second(rate)
    remove_stale()
    owner = os.getpid()
    janitor = subprocess.Popen(
        [sys.executable, "-m", "experiments.links.namespaces", str(owner)],
        stdin=subprocess.PIPE,
        start_new_session=True,  # not reached by a terminal's interrupt
    )
    try:
        _make(owner, num_workers, rate)
        yield [_name(owner, worker) for worker in range(num_workers)]
    finally:
        janitor.communicate()  # closes its standard input


def inside(namespace: str, command: Sequence[str]) -> list[str]:
    """A command that runs another one in a namespace."""
    return ["ip", "netns", "exec", namespace, *command]


def address(worker: int) -> str:
    """Returns the address of a worker's device."""
    return f"10.77.{(worker + 1) // 250}.{(worker + 1) % 250 + 1}"


def remove_stale() -> None:
    """Removes the namespaces of owners that have ended."""
    for owner in {int(found[1]) for found in map(_owned, _existing()) if found}:
        if not Path("/proc", str(owner)).exists():
            remove(owner)


def remove(owner: int) -> None:
    """Ends what runs in a process's namespaces, and removes them, with all links between them."""
    for name in _existing():
        found = _owned(name)
        if found and int(found[1]) == owner:
            try:
                for process in _run("ip", "netns", "pids", name).split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(process), signal.SIGKILL)
                _run("ip", "netns", "delete", name)
            except OSError:
                if name in _existing():  # else another process has removed it meanwhile
                    raise
            shutil.rmtree(_HOSTS / name, ignore_errors=True)


def _make(owner: int, num_workers: int, rate: str) -> None:
    hub = _name(owner, "hub")
    _run("ip", "netns", "add", hub)
    _run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
    _run("ip", "-n", hub, "link", "set", "bridge", "up")
    for worker in range(num_workers):
        name, link = _name(owner, worker), f"link{worker}"
        _run("ip", "netns", "add", name)
        hosts = _HOSTS / name / "hosts"
        hosts.parent.mkdir(parents=True)
        hosts.write_text(f"127.0.0.1 localhost\n{address(worker)} {socket.gethostname()}\n")
        ends = ("name", DEVICE, "type", "veth", "peer", "name", link, "netns", hub)
        _run("ip", "-n", name, "link", "add", *ends)
        _run("ip", "-n", name, "address", "add", f"{address(worker)}/16", "dev", DEVICE)
        _run("ip", "-n", hub, "link", "set", link, "master", "bridge")
        for namespace, device in ((name, "lo"), (name, DEVICE), (hub, link)):
            _run("ip", "-n", namespace, "link", "set", device, "up")
        if rate != UNLIMITED:
            for namespace, device in ((name, DEVICE), (hub, link)):
                _limit(namespace, device, rate)


def _limit(namespace: str, device: str, rate: str) -> None:
    # The bucket holds what passes in 10 ms, as slow kernel timers tick, and at least a 64 KiB packet.
    bucket = max(bits_per_second(rate) / 8 / 100, 1 << 16)
    limit = ("rate", rate, "burst", str(round(bucket)), "latency", _QUEUE)
    _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *limit)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout


def _existing() -> list[str]:
    return [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line]


def _name(owner: int, part: int | str) -> str:
    return f"{_PREFIX}-{owner}-{part}"


def _owned(name: str) -> re.Match[str] | None:
    return re.fullmatch(rf"{_PREFIX}-(\d+)-\w+", name)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    remove(int(sys.argv[1]))
