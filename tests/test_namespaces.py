"""A slow network of namespaces: it limits, it counts, and nothing is left, however its owner ends."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.links import namespaces
from experiments.links.namespaces import address, bits_per_second, inside, network

ROOT = Path(__file__).parents[1]
PATIENCE = 60  # seconds, for a machine with much else to do


def can_make_namespaces() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        return False
    name = f"probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return made.returncode == 0


needs_namespaces = pytest.mark.skipif(
    not can_make_namespaces(), reason="needs root, iproute2 and a kernel with network namespaces"
)

SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 4000)) as stream:
    for _ in range(100):
        stream.sendall(bytes(10_000))
    stream.shutdown(socket.SHUT_WR)
    stream.recv(1)
print(open("/sys/class/net/eth0/statistics/tx_bytes").read())
"""
RECEIVE = """
import socket
with socket.create_server(("", 4000)) as listener:
    print("ready", flush=True)
    stream, _ = listener.accept()
    with stream:
        while stream.recv(1 << 16):
            pass
"""


def of_process(owner: int) -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines() if f"-{owner}-" in line]


@needs_namespaces
def test_workers_reach_each_other_over_links_that_count_what_they_send():
    with network(3, "100mbit") as names:
        assert len(of_process(os.getpid())) == 4  # one of them is the bridge's
        receiver = subprocess.Popen(
            inside(names[2], [sys.executable, "-c", RECEIVE]), stdout=subprocess.PIPE, text=True
        )
        with receiver:
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == "ready\n"
            sender = inside(names[0], [sys.executable, "-c", SEND, address(2)])
            done = subprocess.run(sender, capture_output=True, text=True, check=True, timeout=PATIENCE)
        assert 1_000_000 < int(done.stdout) < 1_050_000  # what was sent, and a header for each packet
        queues = inside(names[1], ["tc", "qdisc", "show", "dev", "eth0"])
        assert (
            "rate 100Mbit" in subprocess.run(queues, capture_output=True, text=True, check=True).stdout
        )
    assert not of_process(os.getpid())
    assert not list(Path("/etc/netns").glob(f"gossip-{os.getpid()}-*"))


@needs_namespaces
def test_the_host_s_name_is_the_worker_s_address_in_its_namespace():
    ask = [sys.executable, "-c", "import socket; print(socket.gethostbyname(socket.gethostname()))"]
    with network(2, "unlimited") as names:
        for worker, name in enumerate(names):
            done = subprocess.run(inside(name, ask), capture_output=True, text=True, check=True)
            assert done.stdout.strip() == address(worker)


@needs_namespaces
def test_nothing_is_left_after_an_error():
    with pytest.raises(RuntimeError, match="in the middle"), network(2, "unlimited"):
        raise RuntimeError("in the middle")
    assert not of_process(os.getpid())


def is_running(process: int) -> bool:
    """Not so of one that has ended, and waits for its parent to notice."""
    try:
        return Path("/proc", str(process), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


OWNER = """
import subprocess, sys, time
from experiments.links import namespaces
with namespaces.network(2, "10mbit") as names:
    inner = subprocess.Popen(namespaces.inside(names[0], ["sleep", "600"]))
    print(inner.pid, flush=True)
    time.sleep(600)
"""


@needs_namespaces
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_of_an_owner_that_was_killed(number):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        inner = int(owner.stdout.readline())
        assert len(of_process(owner.pid)) == 3
        owner.send_signal(number)
        owner.wait(PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while (of_process(owner.pid) or is_running(inner)) and time.monotonic() < deadline:
            time.sleep(0.1)
    assert not of_process(owner.pid)
    assert not is_running(inner)


@needs_namespaces
def test_what_a_dead_owner_left_goes_at_the_next_start():
    ended = subprocess.Popen(["true"])
    ended.wait()
    subprocess.run(["ip", "netns", "add", f"gossip-{ended.pid}-0"], check=True)
    with network(1, "unlimited"):
        assert not of_process(ended.pid)


def test_rates_are_read():
    assert bits_per_second("10mbit") == 1e7
    assert bits_per_second("2.5gbit") == 2.5e9
    assert bits_per_second("unlimited") == float("inf")


@pytest.mark.parametrize("rate", ["fast", "10", "10 mbit", "-1mbit", "0mbit", "1kbit", "1000gbit", ""])
def test_what_is_no_rate_is_named(rate):
    with pytest.raises(ValueError, match=f"--rate must be unlimited or a number with.*got '{rate}'"):
        bits_per_second(rate)


def test_addresses_differ():
    assert len({address(worker) for worker in range(600)}) == 600


def test_it_needs_root(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda tool: f"/usr/sbin/{tool}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(OSError, match="only root can make"):
        namespaces.require_tools()


def test_it_needs_iproute2(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    with pytest.raises(OSError, match="apt-get install iproute2"):
        namespaces.require_tools()
