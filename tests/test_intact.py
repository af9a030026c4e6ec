"""What cannot be read is not damaged: the command stops, says why, and changes no file.

A user whom modes bind, a file that gives an I/O error, a file system that is away or full.
"""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from experiments.runs import records
from experiments.runs.checkpoints import Checkpoints
from experiments.tables import sweep
from experiments.tables.sweep import Job
from experiments.tasks import data
from experiments.training import run
from experiments.training.program import Programs

FLAGS = ["--width", "8", "--epochs", "3", "--p", "0.5", "--backend", "vmap"]
NOBODY = 65534
DENIED, BROKEN = "Permission denied", "Input/output error"


@pytest.fixture(scope="module", autouse=True)
def no_cache() -> Iterator[None]:
    """What the tests have compiled is kept in files that nobody may not write."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # jax asks once
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.fixture(scope="module", autouse=True)
def compile_once() -> Iterator[None]:
    programs = Programs(data.load("digits"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run, "Programs", lambda _: programs)
        yield


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """As a user whom modes bind, unlike root."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty directory that every user may go to, unlike pytest's."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o777)
    yield path
    for folder, _, _ in os.walk(path):
        Path(folder).chmod(0o777)
    shutil.rmtree(path)


@pytest.fixture
def stopped(place, train_cli) -> Path:
    """A run of nobody's, stopped after the last epoch, right before its result."""
    out = place / "run"
    with as_nobody():
        assert train_cli(*FLAGS, "--out", str(out))[0] == 0
    (out / "result.json").unlink()
    return out


def contents(directory: Path) -> dict[str, Any]:
    """Every file's bytes, but for the lock, and the names of all that is there."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        if path.is_file() and not path.is_symlink()
        else None
        for path in directory.rglob("*")
        if path.name != ".lock"
    }


def forbid(path: Path) -> Callable[[], None]:
    mode = path.stat().st_mode
    path.chmod(0)
    return lambda: path.chmod(mode)


def first_file(out: Path) -> Path:
    return max((out / "checkpoints" / "3").rglob("*"), key=lambda p: p.is_file() * p.stat().st_size)


@pytest.mark.parametrize(
    "of",
    [
        lambda out: out / "checkpoints",
        pytest.param(lambda out: out / "checkpoints" / "3", marks=pytest.mark.slow),
        pytest.param(lambda out: out / "checkpoints" / "3" / "sha256.json", marks=pytest.mark.slow),
        first_file,
        pytest.param(lambda out: out / "config.json", marks=pytest.mark.slow),
    ],
    ids=["all", "checkpoint", "checksums", "arrays", "config"],
)
def test_what_may_not_be_read_stops_a_run_by_name_and_changes_nothing(of, stopped, train_cli):
    before, path = contents(stopped), of(stopped)
    allow = forbid(path)
    with as_nobody():
        code, shown, message = train_cli("--resume", str(stopped))
    allow()
    assert code == 2
    assert f"{path}: {DENIED}" in message
    assert "cannot be read" in message
    assert "damaged" not in shown + message
    assert contents(stopped) == before
    with as_nobody():
        assert train_cli("--resume", str(stopped))[0] == 0
    assert (stopped / "result.json").exists()


def test_an_io_error_is_not_damage(stopped, train_cli):
    file = first_file(stopped)
    shutil.move(file, stopped.parent / "moved")
    file.symlink_to("/proc/self/mem")  # of which no byte can be read
    before = contents(stopped)
    code, shown, message = train_cli("--resume", str(stopped))
    assert code == 2
    assert f"{file}: {BROKEN}; nothing was changed" in message
    assert "damaged" not in shown + message
    assert contents(stopped) == before


def test_a_checkpoint_before_one_that_cannot_be_read_is_not_taken_in_its_place(stopped, train_cli):
    """Nor is one set aside as damaged, where the one that would then be taken cannot be read."""
    first_file(stopped).write_bytes(b"")
    before = contents(stopped)
    allow = forbid(stopped / "checkpoints" / "2" / "sha256.json")
    with as_nobody():
        code, _, message = train_cli("--resume", str(stopped))
    allow()
    assert code == 2
    assert f"2/sha256.json: {DENIED}" in message
    assert contents(stopped) == before


def mount(*arguments: str) -> None:
    try:
        subprocess.run(["mount", *arguments], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to mount a file system")


@pytest.mark.parametrize(
    "how",
    [
        "unmounted",
        pytest.param("dangling", marks=pytest.mark.slow),
        pytest.param("gone", marks=pytest.mark.slow),
    ],
)
def test_checkpoints_on_a_file_system_that_is_away_are_waited_for(how, stopped, train_cli):
    checkpoints, store = stopped / "checkpoints", stopped.parent / "store"
    metrics = (stopped / "metrics.jsonl").read_bytes()
    checkpoints.rename(store)
    if how == "unmounted":
        checkpoints.mkdir()
        mount("--bind", str(store), str(checkpoints))
        subprocess.run(["umount", str(checkpoints)], check=True)
    elif how == "dangling":
        checkpoints.symlink_to(stopped.parent / "mnt")
    before, kept = contents(stopped), contents(store)
    code, _, message = train_cli("--resume", str(stopped))
    assert code == 2
    assert str(checkpoints) in message
    assert "othing was changed" in message
    assert (contents(stopped), contents(store)) == (before, kept)
    if how == "unmounted":
        mount("--bind", str(store), str(checkpoints))
    elif how == "dangling":
        store.rename(stopped.parent / "mnt")
    else:
        store.rename(checkpoints)
    try:
        assert train_cli("--resume", str(stopped))[0] == 0
    finally:
        if how == "unmounted":
            subprocess.run(["umount", str(checkpoints)], check=True)
    assert (stopped / "metrics.jsonl").read_bytes() == metrics


def test_what_is_damaged_is_set_aside_as_it_is_once_there_is_a_newer_checkpoint(stopped, train_cli):
    """In the end the run is as it was, and the damaged files, too, are still there."""
    first_file(stopped).write_bytes(b"torn")
    before = contents(stopped)
    assert train_cli("--resume", str(stopped))[0] == 0
    after = contents(stopped)
    for name, content in before.items():
        kept = name.replace("checkpoints/3", "checkpoints/3.damaged")
        assert kept in after
        if kept != name:
            assert after[kept] == content
    assert Checkpoints(stopped / "checkpoints").epochs()[-2:] == [2, 3]


def test_nothing_is_cut_or_deleted_where_no_newer_checkpoint_can_be_written(
    stopped, train_cli, monkeypatch
):
    for epoch in (2, 3):
        (stopped / "checkpoints" / str(epoch) / "_METADATA").write_bytes(b"torn")
    (stopped / "result.json").write_text("{}")
    before = contents(stopped)
    full = OSError(28, "No space left on device")

    def fail(*_: Any, **__: Any) -> None:
        raise full

    monkeypatch.setattr("experiments.runs.checkpoints._require_space", fail)
    code, _, message = train_cli("--resume", str(stopped), "--epochs", "4")
    assert code == 2
    assert "cannot be written" in message
    assert contents(stopped) == before


def test_on_a_full_file_system_a_run_that_goes_on_loses_nothing(small_disk, train_cli):
    out = small_disk / "run"
    assert train_cli(*FLAGS, "--out", str(out))[0] == 0
    first = (out / "checkpoints" / "3" / "_METADATA").write_bytes(b"torn")
    assert first
    before = contents(out)
    with contextlib.suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    code, _, message = train_cli("--resume", str(out), "--epochs", "4")
    assert code == 2
    assert "cannot be written" in message
    assert contents(out) == before
    (small_disk / "ballast").unlink()
    assert train_cli("--resume", str(out), "--epochs", "4")[0] == 0


def job(settings: str = "") -> Job:
    from experiments.tables import rows

    text = f'title = "T"\ngroup = "t"\n[settings]\nwidth = 8\nepochs = 2\n{settings}[rows]\nA = {{}}\n'
    table = rows.parse("t", text)
    (only,) = sweep.jobs_of(table, table.rows, [0], backend="vmap")
    return only


@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_record_that_may_not_be_read_is_not_run_again(what, place):
    path = job().record_path(place)
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    allow = forbid(path if what == "file" else path.parent)
    with as_nobody(), pytest.raises(OSError, match=rf"{DENIED}: '{path}'"):
        job().record(place)
    allow()


def test_no_message_of_a_record_says_to_delete_it(place):
    path = place / "seed-0.json"
    for text in ("{", '{"format": 0}', '{"format": 1, "sha256": ""}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=str(path)) as error:
            records.read(path)
        assert "delete" not in str(error.value)


@pytest.fixture
def mnist(shared, place) -> Path:
    """A copy, to be had by --data-dir; of its examples only what is asked for is read."""
    copy = place / "mnist" / "3.0.1"
    shutil.copytree(shared / "data" / "tfds" / "mnist" / "3.0.1", copy, copy_function=shutil.copyfile)
    for path in (place / "mnist", copy):
        path.chmod(0o755)
    return copy


@pytest.mark.parametrize("what", ["mnist", "mnist/3.0.1", "mnist/3.0.1/features.json", "records"])
def test_a_dataset_that_may_not_be_read_is_not_called_damaged(what, mnist, place):
    (test_records,) = mnist.glob("mnist-test*")
    path = test_records if what == "records" else place / what
    allow = forbid(path)
    with as_nobody(), pytest.raises(OSError, match=rf"{path}.*: {DENIED}; nothing was changed"):
        data.load("mnist", place)
    allow()


def test_an_io_error_of_a_dataset_is_not_called_damage(mnist, place):
    (test_records,) = mnist.glob("mnist-test*")
    test_records.unlink()
    test_records.symlink_to("/proc/self/mem")
    with pytest.raises(OSError, match=rf"{test_records}: {BROKEN}; nothing was changed"):
        data.load("mnist", place)


def test_a_dataset_in_another_format_is_called_that(mnist, place):
    info = mnist / "dataset_info.json"
    info.write_text(info.read_text().replace('"array_record"', '"tfrecord"'))
    for path in mnist.glob("mnist-*"):
        path.rename(path.with_name(path.name.replace("array_record", "tfrecord")))
    with pytest.raises(ValueError, match=r"is prepared as tfrecord") as error:
        data.load("mnist", place)
    assert not re.search("damaged|delete", str(error.value), re.IGNORECASE)
    assert "--file_format=array_record" in str(error.value)
