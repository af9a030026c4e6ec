"""A run that goes on ends as an unbroken one; what would make it another run is refused."""

import contextlib
import io
import json
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from commands import run_module, stop_module
from rich.console import Console

from experiments import train
from experiments.common.cli import flag
from experiments.common.interrupts import Interrupted
from experiments.runs import journal
from experiments.runs.checkpoints import Checkpoints
from experiments.runs.journal import Journal
from experiments.runs.run_directory import RunDirectory
from experiments.tasks.data import load
from experiments.training import run
from experiments.training.config import Config, names_that_may_change
from experiments.training.loop import Epoch
from experiments.training.program import Programs

SMALL = Config(width=8, epochs=4, p=0.5, backend="vmap")
FLAGS = ["--width", "8", "--epochs", "4", "--p", "0.5", "--backend", "vmap"]


@pytest.fixture(scope="module")
def digits():
    return load("digits")


@pytest.fixture(scope="module", autouse=True)
def compile_once(digits) -> Iterator[None]:
    """For all tests."""
    programs = Programs(digits)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run, "Programs", lambda _: programs)
        yield


def metrics_of(directory: Path) -> list[dict[str, Any]]:
    """Of each epoch, without the time that it took."""
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def result_of(directory: Path) -> dict[str, Any]:
    result = json.loads((directory / "result.json").read_text(encoding="utf-8"))["result"]
    del result["updates_per_second"]
    return result


def last_state(directory: Path) -> list[bytes]:
    """Every leaf of the last checkpoint, to the bit."""
    config = RunDirectory(directory).read_config()
    setup = run.set_up(config, load("digits"))
    (progress,) = journal.begin([Journal(setup, RunDirectory(directory).checkpoints)], pytest.fail)
    assert progress.epoch == config.epochs
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(progress.state)]


def forget_the_end(directory: Path, epoch: int) -> None:
    """As a kill after that epoch would have left it, with a line of metrics too many."""
    (directory / "result.json").unlink(missing_ok=True)
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (directory / "metrics.jsonl").write_text("".join(lines[: epoch + 1]), encoding="utf-8")
    for path in (directory / "checkpoints").iterdir():
        if int(path.name) > epoch:
            shutil.rmtree(path)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, digits) -> Path:
    """A finished run, every checkpoint of which is still there."""
    out = tmp_path_factory.mktemp("unbroken") / "run"
    go(SMALL, out, digits, keep_all=True)
    return out


def go(config: Config, out: Path, dataset: Any, keep_all: bool = False) -> str:
    """Trains from where the directory is to the end: what it showed."""
    shown = io.StringIO()
    console = Console(file=shown, width=300)
    directory = RunDirectory(out)
    setup = run.set_up(config, dataset)
    course, progress = train.begin(setup, directory, console)
    if keep_all:
        save = course.checkpoints.save
        course.checkpoints.save = lambda epoch, state, notes, spared: save(  # pyright: ignore
            epoch, state, notes, spared=range(epoch)
        )
    train.train(course, progress, directory, console)
    return shown.getvalue()


@pytest.fixture
def stopped(unbroken, tmp_path):
    """A copy of the run as it was after an epoch."""

    def copy(epoch: int) -> Path:
        out = tmp_path / "stopped"
        shutil.copytree(unbroken, out)
        forget_the_end(out, epoch)
        return out

    return copy


@pytest.mark.parametrize(
    "epoch", [0, pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow)]
)
def test_a_run_goes_on_to_the_bit(epoch, stopped, unbroken, train_cli):
    out = stopped(epoch)
    code, shown, _ = train_cli("--resume", str(out))
    assert code == 0
    assert f"see {out}" in shown
    assert metrics_of(out) == metrics_of(unbroken)
    assert result_of(out) == result_of(unbroken)
    assert last_state(out) == last_state(unbroken)
    config = json.loads((out / "config.json").read_text())
    assert [start["from_epoch"] for start in config["resumed"]] == [epoch][epoch == 0 :]


@pytest.mark.parametrize("backend", ["pmap", pytest.param("shard_map", marks=pytest.mark.slow)])
def test_a_run_goes_on_elsewhere_to_rounding(backend, stopped, unbroken, train_cli):
    out = stopped(2)
    assert train_cli("--resume", str(out), "--backend", backend)[0] == 0
    assert json.loads((out / "config.json").read_text())["backend"] == backend
    for ours, theirs in zip(metrics_of(out), metrics_of(unbroken), strict=True):
        assert ours["exchanges"] == theirs["exchanges"]
        assert ours["bytes_sent_per_worker"] == theirs["bytes_sent_per_worker"]
        assert ours["training_loss"] == pytest.approx(theirs["training_loss"], rel=1e-4)
    assert metrics_of(out)[:2] == metrics_of(unbroken)[:2]
    for ours, theirs in zip(last_state(out), last_state(unbroken), strict=True):
        # Parameters and momenta up to 1 after 18 updates: README's 1e-6, for float32.
        if len(ours) > 16:  # not the steps that the optimizer counts
            ours, theirs = (np.frombuffer(b, np.float32) for b in (ours, theirs))
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


def test_a_longer_run_is_what_it_would_have_been_at_once(stopped, digits, train_cli, tmp_path):
    out = stopped(4)
    assert train_cli("--resume", str(out), "--epochs", "6")[0] == 0
    whole = tmp_path / "whole"
    assert train_cli(*FLAGS, "--epochs", "6", "--out", str(whole))[0] == 0
    assert metrics_of(out) == metrics_of(whole)
    assert result_of(out) == result_of(whole)
    assert last_state(out) == last_state(whole)


def test_the_last_two_checkpoints_are_kept_and_the_best(train_cli, tmp_path):
    accuracies, kept = [], []
    for epochs in range(1, 7):
        flags = [*FLAGS, "--out", "run"] if epochs == 1 else ["--resume", "run"]
        assert train_cli(*flags, "--epochs", str(epochs))[0] == 0
        accuracies = [line["validation_accuracy_mean"] for line in metrics_of(tmp_path / "run")]
        kept = Checkpoints(tmp_path / "run" / "checkpoints").epochs()
        best = 1 + accuracies.index(max(accuracies))
        assert kept == sorted({max(epochs - 1, 1), epochs, best})


def test_checkpoints_come_as_often_as_was_asked_for_and_last(train_cli, tmp_path):
    assert train_cli(*FLAGS, "--epochs", "5", "--checkpoint-every", "3", "--out", "run")[0] == 0
    assert Checkpoints(tmp_path / "run" / "checkpoints").epochs() == [3, 5]
    assert train_cli(*FLAGS, "--checkpoint-every", "0", "--out", "none")[0] == 0
    assert not (tmp_path / "none" / "checkpoints").exists()


def test_a_torn_checkpoint_is_named_and_the_one_before_taken(stopped, unbroken, train_cli):
    out = stopped(3)
    file = max((out / "checkpoints" / "3").rglob("*"), key=lambda path: path.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1])
    code, shown, _ = train_cli("--resume", str(out))
    assert code == 0
    assert "3 is damaged: its file" in shown
    assert "is damaged; taking the one before, or the start" in shown
    assert json.loads((out / "config.json").read_text())["resumed"][0]["from_epoch"] == 2
    assert result_of(out) == result_of(unbroken)
    assert metrics_of(out) == metrics_of(unbroken)


REFUSED = {
    "another W": (["--workers", "2"], ["--workers is 2, but 4 in the run"]),
    "another model": (["--model", "resnet18"], ["--model is resnet18, but mlp in the run"]),
    "another dataset": (["--dataset", "mnist"], ["--dataset is mnist, but digits"]),
    "another protocol": (["--protocol", "all_reduce"], ["--protocol is all_reduce, but elastic"]),
    "p at its default": (["--p", "0.03125"], ["--p is 0.03125, but 0.5 in the run"]),
    "another place": (["--out", "elsewhere"], ["--out is elsewhere", "beside --resume"]),
    "fewer epochs": (["--epochs", "3"], ["--epochs is 3, but 4", "longer"]),
}


@pytest.mark.parametrize(("arguments", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_makes_it_another_run_is_refused_by_name(arguments, words, stopped, train_cli):
    out = stopped(2)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    code, _, message = train_cli("--resume", str(out), *arguments)
    assert code == 2
    for word in [*words, str(out)][: len(words) + 1]:
        assert word in message
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_the_help_of_resume_names_all_that_may_be_given_beside_it_and_nothing_else(
    train_cli, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "100")
    code, shown, _ = train_cli("--help")
    assert code == 0
    (said,) = re.findall(r"--resume .*?\(default", shown, re.DOTALL)
    named = set(re.findall(r"--[a-z-]+", said)) - {"--resume"}
    assert named == {flag(name) for name in names_that_may_change()}


def test_a_finished_run_does_not_go_on_by_itself(stopped, unbroken, train_cli):
    code, _, message = train_cli("--resume", str(unbroken))
    assert code == 2
    assert "has finished; give it more --epochs than 4" in message


def test_a_checkpoint_of_another_run_is_refused_and_the_difference_named(stopped, train_cli):
    out = stopped(2)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"workers": 2, "p": 0.25}))
    code, _, message = train_cli("--resume", str(out))
    assert code == 2
    assert re.search(
        r"checkpoints/2 is of .*: p 0\.5 there, 0\.25 here; workers 4 there, 2 here", message
    )


def test_a_directory_without_a_run_is_refused(train_cli, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "nowhere"):
        code, _, message = train_cli("--resume", name)
        assert code == 2
        assert f"--resume {name} holds no run" in message
        assert not list((tmp_path / "empty").iterdir())
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_a_signal_ends_the_epoch_saves_and_says_how_to_go_on(number, code, tmp_path):
    out = tmp_path / "a run"
    found, shown, message = stop_module(
        "train",
        *FLAGS,
        *("--epochs", "100000", "--checkpoint-every", "0", "--out", str(out)),
        signals=(number,),
        when=lambda: (out / "metrics.jsonl").exists() and len(metrics_of(out)) > 1,
    )
    assert found == code, message
    assert shown.splitlines()[-1] == "stopping after this epoch; Ctrl-C stops at once"
    command = f"python -m experiments.train --resume '{out}'"
    assert message == f"error: interrupted; to go on: {command}\n"
    (epoch,) = Checkpoints(out / "checkpoints").epochs()
    assert [line["epoch"] for line in metrics_of(out)] == list(range(1, epoch + 1))
    # The command that it printed works, and the run goes on where it was.
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"epochs": epoch + 1}))
    assert run_module("train", "--resume", str(out)).returncode == 0
    assert json.loads((out / "config.json").read_text())["resumed"][0]["from_epoch"] == epoch


def test_a_second_interrupt_does_not_wait(tmp_path):
    """An epoch of this run takes minutes."""
    out = tmp_path / "out"
    flags = ["--width", "4000", "--workers", "8", "--batch-size", "8", "--backend", "vmap"]
    code, shown, message = stop_module(
        "train",
        *(*flags, "--out", str(out)),
        signals=(signal.SIGINT, signal.SIGINT),
        when=lambda: (out / "metrics.jsonl").exists(),
    )
    assert code == 130
    how = f"to go on: python -m experiments.train --resume {out}"
    assert message == f"error: stopped at once; the last checkpoint is as it was; {how}\n"
    assert "stopping after this epoch; Ctrl-C stops at once" in shown
    assert metrics_of(out) == []


def test_a_signal_in_the_last_epoch_stops_nothing(digits, tmp_path):
    class Received:
        received = signal.SIGINT

    directory, console = RunDirectory(tmp_path), Console(file=io.StringIO())
    short = run.set_up(Config(width=8, epochs=1, backend="vmap"), digits)
    course, progress = train.begin(short, directory, console)
    train.train(course, progress, directory, console, Received())  # pyright: ignore[reportArgumentType]
    assert directory.has_result
    longer = run.set_up(Config(width=8, epochs=3, backend="vmap"), digits)
    course, progress = train.begin(longer, directory, console)
    with pytest.raises(Interrupted, match=r"interrupted; to go on: python -m .* --resume"):
        train.train(course, progress, directory, console, Received())  # pyright: ignore[reportArgumentType]
    assert not directory.has_result
    assert Checkpoints(tmp_path / "checkpoints").epochs()[-1] == 2


def test_a_run_whose_disk_fills_up_stops_with_a_message_and_goes_on_once_there_is_room(
    small_disk, train_cli, monkeypatch, tmp_path
):
    out, ballast, update = small_disk / "run", small_disk / "ballast", train.EpochProgress.update

    def fill_up(shown: Any, after: Sequence[Epoch]) -> None:
        update(shown, after)
        if after[0].progress.epoch == 2:
            ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free - 200_000))

    with monkeypatch.context() as patched:
        patched.setattr(train.EpochProgress, "update", fill_up)
        code, _, message = train_cli(*FLAGS, "--width", "64", "--out", str(out))
    assert code == 2
    assert f"the checkpoint {out}/checkpoints/3 cannot be written: it takes up to 1 MB" in message
    assert f"to go on: python -m experiments.train --resume {out}" in message
    assert len(message.splitlines()) == 1
    assert Checkpoints(out / "checkpoints").epochs() == [1, 2]
    ballast.unlink()
    assert train_cli("--resume", str(out))[0] == 0
    whole = tmp_path / "whole"
    assert train_cli(*FLAGS, "--width", "64", "--out", str(whole))[0] == 0
    assert result_of(out) == result_of(whole)
    assert metrics_of(out) == metrics_of(whole)


def test_where_there_is_no_room_at_all_a_run_stops_with_a_message(small_disk, train_cli, monkeypatch):
    begin, out = train.begin, small_disk / "run"

    def fill_up(*arguments: Any) -> Any:
        begun = begin(*arguments)
        with contextlib.suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        return begun

    monkeypatch.setattr(train, "begin", fill_up)
    code, _, message = train_cli(*FLAGS, "--out", str(out))
    assert code == 2
    assert f"{out}/metrics.jsonl cannot be written: No space left on device" in message
