"""The command line of the tables: bad input is a message, and what was stopped goes on."""

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import run_module, stop_module

from experiments import table
from experiments.tables import rows, sweep

ROW, EXAMPLES = "GS-4-0.125", 2560  # an epoch is 20 updates


def command(out: Path, *arguments: str, of: str = "mnist_protocols") -> list[str]:
    """The module and its arguments."""
    return ["table", of, "--out", str(out), *arguments]


@pytest.fixture
def fail(monkeypatch, capsys) -> Callable[..., str]:
    """Runs, here, a command that has to fail: the one line that it says."""
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "8")  # as conftest.py has made them

    def fail_in_process(*arguments: Any, **options: Any) -> str:
        monkeypatch.setattr(sys, "argv", command(*arguments, **options))
        with pytest.raises(SystemExit) as exit:
            table.main()
        shown, message = capsys.readouterr()
        assert exit.value.code == 2
        assert shown == ""
        return error_line(message)

    return fail_in_process


def error_line(message: str) -> str:
    (line,) = message.splitlines()
    assert line.startswith("error: ")
    return line


BAD_INPUT = {
    "unknown row": (["--rows", "EG-5"], ["mnist_protocols has no row 'EG-5'", "AR-4, SW-1, NC-4"]),
    "no seed": (["--seeds", "0"], ["--seeds", "1 or more", "got 0"]),
    "no seed at once": (["--seeds-at-once", "0"], ["--seeds-at-once", "1 or more", "got 0"]),
    "negative epochs": (["--epochs", "-1"], ["--epochs", "1 or more", "got -1"]),
    "no epoch": (["--epochs", "0"], ["--epochs", "1 or more", "got 0"]),
    "no example": (["--train-examples", "0"], ["--train-examples", "1 or more", "got 0"]),
}


@pytest.mark.parametrize(("arguments", "words"), BAD_INPUT.values(), ids=BAD_INPUT.keys())
def test_bad_input_ends_in_a_message_and_writes_nothing(arguments, words, fail, tmp_path):
    message = fail(tmp_path / "out", *arguments)
    for word in words:
        assert word in message
    assert not list(tmp_path.iterdir())


def test_an_unknown_table_is_named_and_those_there_are(fail, tmp_path):
    message = fail(tmp_path / "out", of="mnist")
    for name in ("'mnist'", *rows.names()):
        assert name in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("out", ["file", "file/below", "/proc/gossip_jax"])
def test_a_place_that_cannot_be_written_is_named(out, fail, tmp_path):
    (tmp_path / "file").write_text("content")
    out = tmp_path / out  # which is the latter, where that is absolute
    assert f"--out {out} cannot be used: " in fail(out, "--rows", "SW-1")
    assert (tmp_path / "file").read_text() == "content"


def job_of(out: Path, epochs: int) -> sweep.Job:
    mnist = rows.load("mnist_protocols")
    (job,) = sweep.jobs_of(mnist, mnist.select([ROW]), [0], epochs, EXAMPLES)
    return job


def test_a_damaged_record_is_named_and_left_alone(tmp_path):
    path = job_of(tmp_path, epochs=3).record_path(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text('{"format": 1, "res')
    length = ["--rows", ROW, "--epochs", "3", "--train-examples", str(EXAMPLES)]
    done = run_module(*command(tmp_path, *length))
    assert done.returncode == 2
    assert done.stdout == ""
    message = error_line(done.stderr)
    assert f"{path} is damaged; move it elsewhere" in message
    assert path.read_text() == '{"format": 1, "res'


def figures(path: Path) -> dict[str, Any]:
    """Of a record, without what tells of time."""
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["result"]["updates_per_second"]
    for metrics in content["metrics"]:
        del metrics["seconds"]
    return {key: content[key] for key in ("settings", "result", "metrics")}


def start_of(path: Path) -> list[int]:
    return [start["from_epoch"] for start in json.loads(path.read_text(encoding="utf-8"))["provenance"]]


@pytest.mark.slow
def test_killed_and_interrupted_runs_go_on_with_the_same_command_and_end_as_an_unbroken_one(
    shared, tmp_path
):
    epochs = 6
    length = ["--rows", ROW, "--epochs", str(epochs), "--train-examples", str(EXAMPLES)]
    length += ["--backend", "vmap", "--data-dir", str(shared / "data" / "tfds")]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    job = job_of(stopped, epochs)
    checkpoints = job.checkpoints(stopped)

    def has_checkpoint(epoch: int) -> Callable[[], bool]:
        return lambda: max(checkpoints.epochs(), default=0) >= epoch

    code, _, _ = stop_module(
        *command(stopped, *length), signals=(signal.SIGKILL,), when=has_checkpoint(1)
    )
    assert code == -signal.SIGKILL
    killed_after = checkpoints.epochs()[-1]
    assert 1 <= killed_after < epochs

    code, shown, message = stop_module(
        *command(stopped, *length),
        signals=(signal.SIGINT,),
        when=has_checkpoint(killed_after + 1),
    )
    assert code == 130, message
    assert message == "error: interrupted; the same command goes on from the last epoch\n"
    interrupted_after = checkpoints.epochs()[-1]
    assert killed_after < interrupted_after < epochs
    lines = shown.splitlines()
    after = lines[lines.index("stopping after this epoch; Ctrl-C stops at once") + 1 :]
    assert len(after) <= 1  # a line is shown every few seconds
    assert all(f"epoch {interrupted_after}/{epochs}," in line for line in after)

    for out in (stopped, whole):
        done = run_module(*command(out, *length))
        assert done.returncode == 0, done.stderr
    record = job.record_path(stopped)
    assert figures(record) == figures(job.record_path(whole))
    assert start_of(record) == [0, killed_after, interrupted_after]
    assert not checkpoints.path.exists()

    before = record.read_bytes(), record.stat().st_mtime_ns
    again = run_module(*command(stopped, *length))
    assert again.returncode == 0
    assert "1 of 1 runs are there already" in again.stdout
    assert (record.read_bytes(), record.stat().st_mtime_ns) == before
