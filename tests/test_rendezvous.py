"""Processes that are to train as one find each other, or say who is missing or has other settings."""

import re
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from experiments.cluster import rendezvous
from experiments.cluster.processes import Processes
from experiments.cluster.rendezvous import Address, Met

SETTINGS = {"p": 0.5, "seed": 0}
TIMEOUT = 30.0


def meet(*calls: dict[str, Any], patience: float = 30.0) -> list["Future[Met]"]:
    """Each call in a thread of its own: what differs from the usual."""
    address = Address("localhost", rendezvous.free_port())
    with ThreadPoolExecutor(len(calls)) as threads:
        return [
            threads.submit(
                rendezvous.meet,
                call.get("address", address),
                call.get("process", number),
                call.get("of", len(calls)),
                SETTINGS | call.get("settings", {}),
                call.get("patience", patience),
                TIMEOUT,
            )
            for number, call in enumerate(calls)
        ]


def close(*met: Met) -> None:
    for one in met:
        for connection in one.connections.values():
            connection.close()


def message(future: "Future[Met]") -> str:
    """What it raised."""
    error = future.exception()
    assert isinstance(error, ValueError)
    return str(error)


def test_all_learn_the_names_and_a_port():
    met = [future.result() for future in meet({}, {}, {})]
    for one in met:
        assert [re.match(r"process (\d) \(host .*, PID \d+\)$", name)[1] for name in one.names] == [  # pyright: ignore[reportOptionalSubscript]
            "0",
            "1",
            "2",
        ]
        assert one[0::2] == met[0][0::2]
    assert [sorted(one.connections) for one in met] == [[1, 2], [0], [0]]
    close(*met)


def test_one_alone_needs_nobody():
    (future,) = meet({})
    assert future.result().connections == {}


@pytest.mark.parametrize("settings", [{"p": 0.25}, {"seed": 1}, {"alpha": 0.5}])
def test_other_settings_are_named_everywhere(settings):
    ((name, value),) = settings.items()
    for future in meet({}, {"settings": settings}):
        said = message(future)
        assert "process 1 (host " in said
        here = SETTINGS.get(name, "not set")
        assert f"has other settings: {name} {value!r} there, {here!r} in process 0" in said


def test_another_number_of_processes_is_named():
    for future in meet({}, {"of": 3}):
        assert "was started with --num-processes 3, and process 0 with 2" in message(future)


def test_who_does_not_come_is_named_everywhere():
    for future in meet({"of": 4}, {"of": 4}, patience=1.0):
        assert message(future) == "of 4 processes, 2, 3 did not come within 1 s"


def test_a_second_process_of_one_number_is_told_so_and_the_others_go_on():
    first, second, third = meet({"of": 2}, {"of": 2}, {"of": 2, "process": 1, "patience": 2.0})
    assert first.exception() is None
    (late,) = (future for future in (second, third) if future.exception())
    assert re.search("two processes 1|cannot be reached|was not waiting for this one", message(late))
    close(*(future.result() for future in (first, second, third) if future is not late))


def test_a_coordinator_that_is_not_there_is_named():
    (future,) = meet({"process": 1, "of": 2}, patience=0.5)
    assert re.fullmatch(
        r"process 0 cannot be reached at --coordinator localhost:\d+ since 0.5 s: Connection refused",
        message(future),
    )


def test_a_port_in_use_is_named():
    with socket.create_server(("", 0)) as taken:
        address = Address("localhost", taken.getsockname()[1])
        with pytest.raises(OSError, match=f"--coordinator localhost:{address.port}.*in use"):
            rendezvous.meet(address, 0, 2, SETTINGS, 1.0, TIMEOUT)


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b"{}\n", b'{"process": "x"}\n', b""]
)
def test_strangers_are_ignored(sent):
    address = Address("localhost", rendezvous.free_port())
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(rendezvous.meet, address, 0, 2, SETTINGS, 30.0, TIMEOUT)
        while True:
            try:
                stranger = socket.create_connection(address)
                break
            except OSError:
                continue
        with stranger:
            stranger.sendall(sent)
        second = threads.submit(rendezvous.meet, address, 1, 2, SETTINGS, 30.0, TIMEOUT)
        close(first.result(), second.result())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"num_processes": 2}, "--num-processes is for one of several processes, with --coordinator"),
        ({"process_id": 0}, "--process-id is for one of several processes, with --coordinator"),
        ({"coordinator": "auto", "process_id": 0}, "--process-id is for one of .*, without auto"),
        ({"coordinator": "a:1"}, "--coordinator a:1 needs --num-processes and --process-id"),
        ({"coordinator": "a:1", "num_processes": 2}, "--coordinator a:1 needs --process-id"),
        (
            {"coordinator": "a:1", "num_processes": 0, "process_id": 0},
            "--num-processes must be .*got 0",
        ),
        (
            {"coordinator": "a:1", "num_processes": 2, "process_id": 2},
            "--process-id must be 0 to 1.*got 2",
        ),
        ({"coordinator": "a:1", "num_processes": 2, "process_id": -1}, "--process-id must be 0 to 1"),
        *(
            ({"coordinator": text, "num_processes": 2, "process_id": 0}, "must be HOST:PORT.*got")
            for text in ("a", "a:", ":1", "a:b", "a:0", "a:65536", "")
        ),
        ({"peer_timeout": 0.0}, "--peer-timeout must be 1 to 1e6 seconds; got 0.0"),
        ({"join_timeout": float("nan")}, "--join-timeout must be 1 to 1e6 seconds; got nan"),
    ],
)
def test_flags_that_are_missing_or_contradict_each_other_are_named(given, says):
    with pytest.raises(ValueError, match=says):
        Processes(**given).checked()


def test_workers_are_shared_equally():
    processes = Processes("localhost:1", num_processes=2, process_id=0)
    assert processes.share_of(4) == 2
    assert Processes().share_of(4) == 4
    with pytest.raises(ValueError, match="multiple of --num-processes; got 3 for 2 processes"):
        processes.share_of(3)
