"""A process that dies or hangs ends the others, which say who it was."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from experiments.cluster.lifeline import PEER_LOST
from experiments.cluster.rendezvous import free_port

HERE = Path(__file__).parent
PATIENCE = 60  # seconds, for a machine with much else to do
TIMEOUT = 3  # of the lifeline
NUM_PROCESSES = 3

Start = Callable[..., list["subprocess.Popen[str]"]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes, each told what to do once all have met, and waits until they have."""
    started: list[subprocess.Popen[str]] = []

    def start_all(*what: str) -> list[subprocess.Popen[str]]:
        port, environment = free_port(), os.environ | {"PYTHONPATH": str(HERE.parent)}
        for process, then in enumerate(what):
            arguments = map(str, [process, len(what), port, TIMEOUT, then])
            started.append(
                subprocess.Popen(
                    [sys.executable, str(HERE / "lifeline_process.py"), *arguments],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "met\n"
        return started

    yield start_all
    for process in started:
        process.kill()
        process.communicate()


def end(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Its exit code and what it said."""
    _, said = process.communicate(timeout=PATIENCE)
    return process.returncode, said


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_process_that_is_killed_ends_the_others(victim, start):
    processes = start(*["live"] * NUM_PROCESSES)
    processes[victim].kill()
    for number, process in enumerate(processes):
        if number != victim:
            code, said = end(process)
            assert code == PEER_LOST
            assert f"error: process {victim} (host " in said
            assert f"PID {processes[victim].pid}) has ended" in said


@pytest.mark.parametrize("victim", [0, 2])
def test_a_process_that_hangs_ends_the_others_and_then_itself(victim, start):
    processes = start(*["live"] * NUM_PROCESSES)
    processes[victim].send_signal(signal.SIGSTOP)
    others = [process for number, process in enumerate(processes) if number != victim]
    for process in others:
        code, said = end(process)
        assert code == PEER_LOST
        assert f"error: process {victim} (host " in said
        assert f"has given no sign of life for {TIMEOUT} s" in said
    processes[victim].send_signal(signal.SIGCONT)
    assert end(processes[victim])[0] == PEER_LOST


def test_a_process_that_fails_ends_the_others_with_its_reason(start):
    processes = start("live", "fail", "live")
    assert end(processes[1])[0] == 7
    for process in (processes[0], processes[2]):
        code, said = end(process)
        assert code == PEER_LOST
        assert "error: process 1 (host " in said
        assert "failed: the disk is full" in said


def test_who_comes_late_to_a_meeting_is_waited_for(start):
    processes = start("meet 0 0", f"meet {TIMEOUT / 2} 0", "meet 0 0")
    for process in processes:
        said, error = process.communicate(timeout=PATIENCE)
        assert (process.returncode, said, error) == (0, "[0, 1, 2]\n", "")


@pytest.mark.parametrize("late", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_who_is_too_late_for_a_meeting_though_alive_is_named_by_all(late, start):
    """Its threads go on to give signs of life."""
    processes = start(*["meet 600 0" if number == late else "meet 0 0" for number in range(3)])
    for process in processes:
        code, said = end(process)
        assert code == PEER_LOST
        assert f"error: process {late} (host " in said
        assert f"has not come to the first epoch within {TIMEOUT} s of the first" in said


@pytest.mark.slow
def test_a_process_that_stops_on_its_way_to_a_meeting_is_named(start):
    processes = start("meet 0 0", "meet 600 0", "meet 0 0")
    processes[1].send_signal(signal.SIGSTOP)
    for process in (processes[0], processes[2]):
        assert end(process)[0] == PEER_LOST


def test_processes_that_all_hang_end_by_themselves(start):
    """As where each waits for another one, in native code."""
    for process in start(*["meet 0 600"] * NUM_PROCESSES):
        code, said = end(process)
        assert code == PEER_LOST
        assert f"has made no progress for {2 * TIMEOUT} s since the first epoch" in said


def test_processes_that_leave_say_nothing(start):
    for process in start(*["leave"] * NUM_PROCESSES):
        assert end(process) == (0, "")
