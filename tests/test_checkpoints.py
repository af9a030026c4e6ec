"""Checkpoints: what is restored is what was saved, to the bit, or an error that says what to do."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.runs.checkpoints import Checkpoints, DamagedCheckpointError

ROOT = Path(__file__).parents[1]
NOTES = {"epoch": 3, "text": "α/τ", "list": [1, 2.5, None], "nested": {"a": True}}


class Pair(NamedTuple):
    first: Any
    second: Any


def state(seed: int = 0, size: int = 300) -> Any:
    """Of tuples, named tuples, dicts and lists, with leaves of several types and shapes."""
    rng = np.random.default_rng(seed)
    kernel = rng.normal(size=(2, size)).astype(np.float32)
    return Pair(
        {
            "Dense_0": {"kernel": jnp.asarray(kernel), "bias/odd.name": jnp.float32([-0.0, 1e-45])},
            "count": jnp.int32(rng.integers(2**31)),
        },
        (
            jnp.asarray(kernel[:, :5], jnp.bfloat16),
            [Pair(jnp.float32([np.nan, np.inf, -np.inf]), ()), None],
            jnp.asarray(rng.integers(0, 256, (3, 1)), jnp.uint8),
        ),
    )


def require_same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


@pytest.fixture
def checkpoints(tmp_path) -> Checkpoints:
    return Checkpoints(tmp_path / "a run" / "seed-0")


def test_a_state_is_restored_to_the_bit_with_its_notes(checkpoints):
    checkpoints.save(3, state(), NOTES)
    found, notes = checkpoints.restore(3, state(seed=1))
    require_same(found, state())
    assert notes == NOTES


def test_shapes_and_types_are_all_that_restoring_needs_to_know(checkpoints):
    checkpoints.save(3, state(), NOTES)
    require_same(checkpoints.restore(3, jax.eval_shape(state))[0], state())


def test_a_state_on_several_devices_is_restored(checkpoints):
    mesh = jax.make_mesh((4,), ("workers",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("workers"))
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    checkpoints.save(1, {"x": jax.device_put(values, sharding)}, {})
    require_same(checkpoints.restore(1, {"x": values})[0], {"x": values})


def test_the_last_two_are_kept(checkpoints):
    assert checkpoints.epochs() == []
    for epoch in (8, 9, 10, 11):
        checkpoints.save(epoch, state(epoch), {"epoch": epoch})
    assert checkpoints.epochs() == [10, 11]
    for epoch in (10, 11):
        found, notes = checkpoints.restore(epoch, state())
        require_same(found, state(epoch))
        assert notes == {"epoch": epoch}
    checkpoints.delete()
    assert checkpoints.epochs() == []
    assert not checkpoints.path.exists()


def test_an_epoch_that_is_saved_again_is_replaced(checkpoints):
    checkpoints.save(1, state(1), {"try": 1})
    checkpoints.save(1, state(2), {"try": 2})
    found, notes = checkpoints.restore(1, state())
    require_same(found, state(2))
    assert notes == {"try": 2}


def test_a_course_begun_anew_replaces_the_checkpoints_of_the_one_before(checkpoints):
    """Also where these are of later epochs: the newest is always of the course that goes on."""
    checkpoints.save(8, state(8), {})
    checkpoints.save(9, state(9), {})
    checkpoints.save(1, state(1), {})
    assert checkpoints.epochs() == [1]
    checkpoints.save(2, state(2), {})
    assert checkpoints.epochs() == [1, 2]


def files_of(directory: Path) -> list[Path]:
    return sorted(path.relative_to(directory) for path in directory.rglob("*") if path.is_file())


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(share: float) -> Callable[[Path], None]:
    """Flips a bit of the byte at that share of a file."""

    def flip_bit(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[int(share * len(content))] ^= 0x10
        path.write_bytes(content)

    return flip_bit


DAMAGE = {
    "cut": cut,
    "empty": lambda path: path.write_bytes(b""),
    "deleted": lambda path: path.unlink(),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "first byte": flip(0),
    "a byte": flip(0.3),
    "another byte": flip(0.7),
    "last byte": flip(1 - 1e-9),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_checkpoint_is_refused_whichever_file_it_is(damage, checkpoints, tmp_path, capfd):
    checkpoints.save(2, state(2), NOTES)
    checkpoints.save(3, state(3), NOTES)
    whole, path = tmp_path / "whole", checkpoints.path / "3"
    shutil.copytree(path, whole)
    assert len(files_of(whole)) >= 5  # of the arrays, of their structure, of the checksums
    for file in files_of(whole):
        shutil.rmtree(path)
        shutil.copytree(whole, path)
        damage(path / file)
        with pytest.raises(DamagedCheckpointError, match=r"is (damaged|missing|not of it)$") as error:
            checkpoints.restore(3, state())
        assert f"the checkpoint {path} is damaged: its file " in str(error.value)
    shutil.rmtree(path)
    require_same(checkpoints.restore(2, state())[0], state(2))
    assert capfd.readouterr() == ("", "")


def run_program(program: str, path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, str(path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_a_damaged_checkpoint_leaves_no_traceback_on_the_terminal(checkpoints):
    """Of orbax's threads, or of its event loops when they are collected."""
    checkpoints.save(3, {"x": np.arange(10.0), "y": np.ones(3)}, {})
    for file in files_of(checkpoints.path / "3"):
        flip(0.5)(checkpoints.path / "3" / file)
    program = (
        "import sys, numpy as np; from pathlib import Path;"
        "from experiments.runs.checkpoints import Checkpoints\n"
        "try: Checkpoints(Path(sys.argv[1])).restore(3, {'x': np.zeros(10), 'y': np.zeros(3)})\n"
        "except ValueError as error: sys.exit(str(error))"
    )
    done = run_program(program, checkpoints.path)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"the checkpoint {checkpoints.path / '3'} is damaged")


def fail(error: BaseException) -> Callable[..., None]:
    def raise_it(*_: Any, **__: Any) -> None:
        raise error

    return raise_it


def test_what_an_unfinished_save_left_is_ignored_and_removed(checkpoints, monkeypatch):
    checkpoints.save(1, state(1), NOTES)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save(2, state(2), NOTES)
    orbax_s_own = checkpoints.path / "2.unfinished.orbax-checkpoint-tmp"
    (orbax_s_own / "d").mkdir(parents=True)
    assert len(list(checkpoints.path.iterdir())) == 3
    assert checkpoints.epochs() == [1]
    require_same(checkpoints.restore(1, state())[0], state(1))
    checkpoints.save(2, state(2), NOTES)
    assert sorted(path.name for path in checkpoints.path.iterdir()) == ["1", "2"]
    require_same(checkpoints.restore(2, state())[0], state(2))


def test_a_save_that_fails_is_named_and_leaves_those_before(checkpoints, monkeypatch):
    checkpoints.save(1, state(1), NOTES)
    monkeypatch.setattr(os, "replace", fail(OSError(5, "Input/output error")))
    with pytest.raises(OSError, match=r"the checkpoint .*/2 cannot be written: .*Input/output error"):
        checkpoints.save(2, state(2), NOTES)
    assert [path.name for path in checkpoints.path.iterdir()] == ["1"]
    require_same(checkpoints.restore(1, state())[0], state(1))


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("content")
    with pytest.raises(OSError, match=r"the checkpoint .*/file/below/1 cannot be written"):
        Checkpoints(tmp_path / "file" / "below").save(1, state(), NOTES)
    assert (tmp_path / "file").read_text() == "content"


def other(**changes: Any) -> Any:
    return {"x": np.zeros((2, 3), np.float32), "y": np.int32(0)} | changes


OTHERS = {
    "a leaf more": (other(z=np.zeros(1)), ["structures do not match"]),
    "a leaf less": ({"x": np.zeros((2, 3), np.float32)}, ["structures do not match"]),
    "another name": ({"x": np.zeros((2, 3), np.float32), "w": np.int32(0)}, ["do not match"]),
    "a leaf deeper": (other(y={"y": np.int32(0)}), ["structures do not match"]),
    "another shape": (
        other(x=np.zeros((3, 2), np.float32)),
        ["['x'] is float32[2, 3] there, float32[3, 2] here"],
    ),
    "more workers": (
        other(x=np.zeros((4, 3), np.float32)),
        ["float32[2, 3] there, float32[4, 3] here"],
    ),
    "another type": (
        other(x=jax.ShapeDtypeStruct((2, 3), jnp.bfloat16)),
        ["['x'] is float32[2, 3] there, bfloat16[2, 3] here"],
    ),
}


@pytest.mark.parametrize(("like", "words"), OTHERS.values(), ids=OTHERS.keys())
def test_a_state_of_another_structure_is_refused(like, words, checkpoints, capfd):
    checkpoints.save(1, other(), NOTES)
    with pytest.raises(ValueError, match="cannot be used") as error:
        checkpoints.restore(1, like)
    for word in (str(checkpoints.path / "1"), "It is whole", *words):
        assert word in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_on_a_full_disk_a_save_fails_in_a_sentence_and_those_before_stay(small_disk, capfd):
    checkpoints, large = Checkpoints(small_disk / "c"), 100_000  # that is 0.8 MB
    checkpoints.save(1, state(1, large), NOTES)
    (small_disk / "ballast").write_bytes(bytes(shutil.disk_usage(small_disk).free - 400_000))
    with pytest.raises(
        OSError, match=r"the checkpoint .*/2 cannot be written: .* MB are free"
    ) as error:
        checkpoints.save(2, state(2, large), NOTES)
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in checkpoints.path.iterdir()] == ["1"]
    require_same(checkpoints.restore(1, state(0, large))[0], state(1, large))
    (small_disk / "ballast").unlink()
    checkpoints.save(2, state(2, large), NOTES)
    require_same(checkpoints.restore(2, state(0, large))[0], state(2, large))


def test_a_disk_that_fills_up_during_a_save_leaves_those_before(small_disk):
    """As when another process writes. Orbax's threads then print tracebacks, hence a process for it."""
    checkpoints, large = Checkpoints(small_disk / "c"), 100_000
    checkpoints.save(1, state(1, large), NOTES)
    (small_disk / "ballast").write_bytes(bytes(shutil.disk_usage(small_disk).free - 400_000))
    program = (
        "import shutil, sys, numpy as np; from pathlib import Path;"
        "from experiments.runs.checkpoints import Checkpoints\n"
        "shutil.disk_usage = lambda path: shutil._ntuple_diskusage(10**12, 0, 10**12)\n"
        "noise = np.random.default_rng(0).normal(size=10**5)\n"
        "try: Checkpoints(Path(sys.argv[1])).save(2, {'x': noise}, {})\n"
        "except OSError as error: print(error)"
    )
    done = run_program(program, checkpoints.path)
    assert done.returncode == 0
    assert done.stdout.startswith(f"the checkpoint {checkpoints.path / '2'} cannot be written: ")
    assert "No space left" in done.stdout
    assert checkpoints.epochs() == [1]
    require_same(checkpoints.restore(1, state(0, large))[0], state(1, large))
