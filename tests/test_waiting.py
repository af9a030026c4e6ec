"""Whoever waits is told what for: for other processes, for an epoch; and after a loss, how to go on."""

import io
import re
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from experiments.cluster import lifeline, rendezvous
from experiments.cluster.lifeline import Lifeline
from experiments.runs import console
from experiments.runs.console import EpochProgress
from experiments.train import how_to_go_on
from experiments.training.loop import Epoch


def meet(address: rendezvous.Address, process: int, say: Any = print) -> rendezvous.Met:
    return rendezvous.meet(address, process, 2, {}, 30, 30, say)


def close(*met: rendezvous.Met) -> None:
    for one in met:
        for connection in one.connections.values():
            connection.close()


@pytest.mark.parametrize(
    ("early", "says"), [(0, "waiting for 1 of 2 processes"), (1, "waiting for process 0 at localhost:")]
)
def test_a_process_says_once_for_whom_it_waits_at_the_start(early, says, monkeypatch):
    monkeypatch.setattr(rendezvous, "_SILENCE", 0.05)
    address, said, is_said = (
        rendezvous.Address("localhost", rendezvous.free_port()),
        [],
        threading.Event(),
    )

    def say(text: str) -> None:
        said.append(text)
        is_said.set()

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(meet, address, early, say)
        assert is_said.wait(30)
        time.sleep(0.3)
        second = threads.submit(meet, address, 1 - early, lambda text: None)
        close(first.result(), second.result())
    assert len(said) == 1
    assert said[0].startswith(says)


def test_who_meets_at_once_says_nothing():
    address, said = rendezvous.Address("localhost", rendezvous.free_port()), []
    with ThreadPoolExecutor(2) as threads:
        met = [threads.submit(meet, address, process, said.append) for process in (0, 1)]
        close(*(one.result() for one in met))
    assert said == []


def test_a_connection_that_is_reset_at_once_is_explained():
    """Process 0 has all its processes, and no longer listens: whatever is sent to it is refused."""
    with socket.create_server(("localhost", 0)) as full:
        full.settimeout(30)

        def reset() -> None:
            stream, _ = full.accept()
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.close()  # sends a reset
            is_reset.set()

        is_reset, create = threading.Event(), socket.create_connection

        def connect(*given: Any) -> socket.socket:
            stream = create(*given)
            assert is_reset.wait(30)
            return stream

        address = rendezvous.Address("localhost", full.getsockname()[1])
        with ThreadPoolExecutor(1) as threads, pytest.MonkeyPatch.context() as patched:
            threads.submit(reset)
            patched.setattr(socket, "create_connection", connect)
            with pytest.raises(ValueError, match="was not waiting for this one"):
                meet(address, 1)


@pytest.fixture
def lifelines():
    """Of two processes, in this one."""
    address = rendezvous.Address("localhost", rendezvous.free_port())
    with ThreadPoolExecutor(2) as threads:
        met = [future.result() for future in [threads.submit(meet, address, i) for i in (0, 1)]]
    both = [Lifeline(i, one.names, one.connections, 30) for i, one in enumerate(met)]
    yield both
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(Lifeline.leave, both))


def test_process_0_says_how_many_have_not_come_to_a_meeting(lifelines, monkeypatch):
    monkeypatch.setattr(lifeline, "_SILENCE", 0.05)
    said, is_said = [], threading.Event()

    def say(text: str) -> None:
        said.append(text)
        is_said.set()

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lifelines[0].meet, "the first epoch", "a", say=say)
        assert is_said.wait(30)
        time.sleep(0.3)
        assert lifelines[1].meet("the first epoch", "b") == ["a", "b"]
        assert waiting.result() == ["a", "b"]
    assert said == ["waiting for 1 of 2 processes"]


def test_a_process_that_lost_another_says_how_to_go_on(lifelines, monkeypatch, capsys, tmp_path):
    class Ended(BaseException):
        pass

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(lifeline.os, "_exit", end)
    lifelines[1].how_to_go_on = how_to_go_on(tmp_path / "my run")
    with pytest.raises(Ended, match="3"):
        lifelines[1]._hear(0, {"end": "process 0 failed: the disk is full"})
    assert capsys.readouterr().err == (
        "error: process 0 failed: the disk is full; this process ends too; to go on: "
        f"python -m experiments.train --resume '{tmp_path}/my run'\n"
    )


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_progress_is_shown_from_the_start_and_runs_within_an_epoch(monkeypatch):
    clock, terminal = Clock(), io.StringIO()
    monkeypatch.setattr(console, "time", clock)
    setup: Any = SimpleNamespace(config=SimpleNamespace(epochs=4), updates_per_epoch=10)
    shown = EpochProgress(
        Console(file=terminal, force_terminal=True, width=120), "elastic_gossip", [setup]
    )

    def line() -> str:
        shown._bar.refresh()
        *_, last = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "\n", terminal.getvalue()).split(
            "elastic_gossip"
        )
        return " ".join(last.split())

    with shown:
        assert "epoch 0/4" in line()
        shown.enter("compiling")
        clock.now += 7
        assert "compiling 0:00:07" in line()
        shown.enter("training")
        clock.now += 60
        assert "training 0:01:00" in line()
        progress: Any = SimpleNamespace(epoch=1, seconds=60.0)
        shown.update([Epoch(progress, None)])
        shown.enter("training")
        clock.now += 30
        assert "epoch 1/4" in line()
        assert shown._now()[0] == pytest.approx(1.5)  # the epoch before took a minute
        clock.now += 3_000
        assert 1.9 < shown._now()[0] < 2  # it is not over yet
