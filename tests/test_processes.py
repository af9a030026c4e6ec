"""Runs that are divided among processes: the result of one, and nothing lost where a process dies."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, wait_for

from experiments.cluster.lifeline import PEER_LOST
from experiments.cluster.rendezvous import free_port

PATIENCE = 300  # seconds, for processes that share two cores with much else
ENVIRONMENT = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
ENVIRONMENT.pop("JAX_NUM_CPU_DEVICES", None)


def command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"experiments.{module}", *arguments]


def train(*arguments: str) -> None:
    """In this one process's way, on as many devices as there are workers."""
    done = subprocess.run(
        command("train", "--backend", "pmap", *arguments),
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def launch(processes: int, *arguments: str) -> tuple[int, str]:
    """Exit code, and all that was said."""
    done = subprocess.run(
        command("launch", "--processes", str(processes), "--", *arguments),
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout


def figures(out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result and the metrics, but for what is measured in seconds."""
    result = json.loads((out / "result.json").read_text())["result"]
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for one in (result, *metrics):
        one.pop("seconds", None)
        one.pop("updates_per_second", None)
    return result, metrics


def assert_alike(ours: Any, want: Any) -> None:
    """Counts are equal, and figures of replicas to 1e-5: they are sums in another order."""
    assert len(ours[1]) == len(want[1])
    for one, other in zip([ours[0], *ours[1]], [want[0], *want[1]], strict=True):
        assert one.keys() == other.keys()
        for name, figure in other.items():
            assert one[name] == pytest.approx(figure, rel=1e-5), name


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["2", "4"])
def test_a_run_of_two_processes_is_that_of_one(workers, tmp_path):
    """Also where each has several workers, which are then together on its device."""
    settings = ["--workers", workers, "--width", "16", "--epochs", "2", "--p", "0.5"]
    code, said = launch(2, *settings, "--out", str(tmp_path / "two"))
    assert code == 0, said
    assert "[0] 18 updates" in said
    assert "[1] 18 updates" not in said
    train(*settings, "--out", str(tmp_path / "one"))
    assert_alike(figures(tmp_path / "two"), figures(tmp_path / "one"))
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == sorted(
        path.name for path in (tmp_path / "one").iterdir()
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--workers", "2", "--backend", "vmap"], "vmap runs all workers on one device"),
        pytest.param(
            ["--workers", "4", "--backend", "pmap"],
            "pmap puts one worker on each device",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_processes_cannot_do_is_said_and_leaves_no_directory(arguments, says, tmp_path):
    code, said = launch(2, *arguments, "--out", str(tmp_path / "out"))
    assert code == 2
    assert says in said
    assert says in said.splitlines()[-1] or said.endswith("failed, as it says above\n")
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()


CLUSTERS = ("SLURM", "OMPI", "KUBERNETES", "TPU", "JAX", "MEGASCALE", "CLOUD_TPU")


def test_outside_a_cluster_auto_says_that_there_is_none_and_what_to_give_instead(tmp_path):
    here = {name: value for name, value in os.environ.items() if not name.startswith(CLUSTERS)}
    done = subprocess.run(
        command("train", "--coordinator", "auto", "--out", str(tmp_path / "out")),
        cwd=ROOT,
        env=here | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2
    (said,) = done.stderr.splitlines()
    assert said.startswith("error: train: --coordinator auto found no cluster here")
    assert said.endswith(
        "give --coordinator HOST:PORT of process 0, with --num-processes and --process-id"
    )
    assert not (tmp_path / "out").exists()


def process_of(number: int, out: Path) -> int:
    """The PID of one of the processes that train into a directory."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = entry.read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has just ended
            continue
        if str(out) in arguments and arguments[-3:-1] == ["--process-id", str(number)]:
            return int(entry.parent.name)
    raise AssertionError(f"there is no process {number}")


def has_checkpoint(out: Path) -> bool:
    """Whether there is a whole one, of whichever epoch: only the last two and the best are kept."""
    return any(path.name.isdecimal() for path in (out / "checkpoints").glob("*"))


def start(processes: int, settings: list[str], out: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command("launch", "--processes", str(processes), "--", *settings, "--out", str(out)),
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def launch_and_signal(
    processes: int, settings: list[str], out: Path, number: int, signal_number: int
) -> tuple[int, str, int]:
    """Signals one of the processes once there is a checkpoint: exit code, what was said, its PID."""
    launched = start(processes, settings, out)
    try:
        wait_for(lambda: has_checkpoint(out))
        victim = process_of(number, out)
        os.kill(victim, signal_number)
        said, _ = launched.communicate(timeout=PATIENCE)
    finally:
        launched.terminate()
    return launched.returncode, said, victim


@pytest.mark.slow
def test_one_of_four_is_killed_and_the_run_goes_on_from_its_checkpoint(tmp_path):
    settings = ["--workers", "4", "--width", "16", "--epochs", "30", "--p", "0.2"]
    out = tmp_path / "four"
    code, said, victim = launch_and_signal(4, settings, out, 2, signal.SIGKILL)
    assert code == 128 + signal.SIGKILL
    assert said.splitlines()[-1] == "error: process 2 was ended by SIGKILL"
    for survivor in (0, 1, 3):
        assert f"[{survivor}] error: process 2 (host " in said
        assert f"PID {victim}) has ended" in said
    assert not (out / "result.json").exists()

    code, said = launch(4, "--resume", str(out))
    assert code == 0, said
    train(*settings, "--out", str(tmp_path / "one"))
    assert_alike(figures(out), figures(tmp_path / "one"))


@pytest.mark.slow
def test_a_process_that_stops_for_longer_than_gloo_waits_for_a_pair_is_waited_for(tmp_path):
    """Gloo gives a group 30 s to connect: here most pairs first talk after the stop."""
    settings = ["--workers", "4", "--width", "16", "--epochs", "30", "--p", "0.01"]
    out = tmp_path / "four"
    launched = start(4, [*settings, "--peer-timeout", "90"], out)
    try:
        wait_for(lambda: has_checkpoint(out))
        stopped = process_of(2, out)
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(35)
        os.kill(stopped, signal.SIGCONT)
        said, _ = launched.communicate(timeout=PATIENCE)
    finally:
        launched.terminate()
    assert launched.returncode == 0, said
    train(*settings, "--out", str(tmp_path / "one"))
    assert_alike(figures(out), figures(tmp_path / "one"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"), [("JAX_THREEFRY_PARTITIONABLE", "0"), ("JAX_ENABLE_X64", "1")]
)
def test_a_process_with_another_setting_of_jax_is_refused_by_name_in_all(name, value, tmp_path):
    settings = ["--workers", "2", "--width", "16", "--out", str(tmp_path / "out")]
    place = ["--coordinator", f"localhost:{free_port()}", "--num-processes", "2", "--process-id"]
    started = [
        subprocess.Popen(
            command("train", *settings, *place, str(number)),
            cwd=ROOT,
            env=ENVIRONMENT | ({name: value} if number else {}),
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    for process in started:
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 2
        assert f"process 1 (host {socket.gethostname()}" in said
        assert f"has other settings: {name.lower()} " in said
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_process_that_stops_ends_the_others_within_the_time_out(tmp_path):
    settings = ["--workers", "2", "--width", "16", "--epochs", "1000000", "--peer-timeout", "5"]
    # The launcher ends the one that hangs only after the other, with that one's exit code.
    code, said, stopped = launch_and_signal(2, settings, tmp_path / "out", 1, signal.SIGSTOP)
    assert code == PEER_LOST
    assert "[0] error: process 1 (host " in said
    assert f"PID {stopped}) has given no sign of life for 5 s" in said
