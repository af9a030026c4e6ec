"""Processes started together: their output, their signals, and the first failure."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import launch
from experiments.cluster.lifeline import PEER_LOST

ROOT = Path(__file__).parents[1]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


SLEEP = python("import time; time.sleep(600)")


def test_output_carries_the_number_of_its_process(capfd):
    assert launch.run([python("print('one'); print('two')"), python("print('three')")]) == 0
    shown = capfd.readouterr().out.splitlines()
    assert sorted(shown) == ["[0] one", "[0] two", "[1] three"]
    assert shown.index("[0] one") < shown.index("[0] two")


def test_one_that_fails_ends_all_and_its_message_comes_last(capfd, monkeypatch):
    monkeypatch.setattr(launch, "_GRACE", 0.5)
    fails = python("import sys; print('error: no disk', file=sys.stderr); sys.exit(7)")
    assert launch.run([SLEEP, fails, SLEEP]) == 7
    assert capfd.readouterr().err.splitlines() == [
        "[1] error: no disk",
        "error: process 1 failed, as it says above",
    ]


def test_one_that_is_killed_is_told_by_its_signal(capfd, monkeypatch):
    monkeypatch.setattr(launch, "_GRACE", 0.5)
    assert launch.run([SLEEP, python("import os; os.kill(os.getpid(), 9)")]) == 128 + 9
    assert capfd.readouterr().err == "error: process 1 was ended by SIGKILL\n"


def test_the_first_failure_is_the_one_that_was_not_due_to_another(capfd):
    lost = python(f"import sys; sys.exit({PEER_LOST})")
    late = python("import sys, time; time.sleep(1); sys.exit(5)")
    assert launch.run([lost, late]) == 5
    assert launch.run([lost, lost]) == PEER_LOST


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_passed_on(number):
    child = (
        f"import signal, sys, time; signal.signal({int(number)}, lambda *_: sys.exit(9)); "
        f"print('ready', flush=True); time.sleep(600)"
    )
    parent = (
        "import sys; from experiments import launch; "
        "sys.exit(launch.run([[sys.executable, '-c', sys.argv[1]]] * 2))"
    )
    started = subprocess.Popen(
        [*python(parent), child],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert started.stdout is not None
        assert sorted([started.stdout.readline(), started.stdout.readline()]) == [
            "[0] ready\n",
            "[1] ready\n",
        ]
        started.send_signal(number)
        started.communicate(timeout=60)
    finally:
        started.kill()
    assert started.returncode == 9


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--processes", "0"], "--processes must be a whole number of 1 or more"),
        (["--processes", "2", "--", "--process-id", "1"], "--process-id is set for each process"),
        (["--processes", "2", "--", "--coordinator=a:1"], "--coordinator is set for each process"),
    ],
)
def test_bad_input_ends_in_a_message(arguments, says, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["launch", *arguments])
    with pytest.raises(SystemExit) as ended:
        launch.main()
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
