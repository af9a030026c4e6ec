"""Checkpoints of a run, written with orbax: it goes on, to the bit, from the last whole one."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from experiments import strict_json

_KEPT = 2  # of runs that train together one may be an epoch ahead when they are stopped


class Checkpoints:
    """The checkpoints of one run, by epoch, in a directory of their own."""

    def __init__(self, path: Path):
        """Names the directory; nothing is made yet."""
        self.path = path.absolute()

    def epochs(self) -> list[int]:
        """The epochs after which there is a checkpoint, in ascending order."""
        names = [path.name for path in self.path.glob("*") if path.is_dir()]
        return sorted(int(name) for name in names if name.isdecimal())

    def save(self, epoch: int, state: Any, notes: dict[str, Any]) -> None:
        """Writes a checkpoint: it is there, whole, or not at all. Older ones go, but for one.

        Args:
          epoch: how many were trained.
          state: a pytree of arrays.
          notes: what else is to be known, as JSON holds it.

        Raises:
          OSError: it cannot be written; the ones before are as they were.
        """
        leaves = _leaves(jax.device_get(state))
        noted = np.frombuffer(strict_json.dumps(notes).encode(), np.uint8)
        content = {"leaves": leaves, "notes": noted, "digest": _digest(leaves, noted)}
        try:
            self._remove_unfinished()
            with ocp.PyTreeCheckpointer() as checkpointer:
                checkpointer.save(self.path / str(epoch), content, force=True)
        except Exception as error:  # of whatever kind orbax and its backends raise
            self._remove_unfinished()
            raise OSError(
                f"the checkpoint {self.path / str(epoch)} cannot be written: {_brief(error)}"
            ) from error
        for old in self.epochs()[:-_KEPT]:
            shutil.rmtree(self.path / str(old))

    def restore(self, epoch: int, like: Any) -> tuple[Any, dict[str, Any]]:
        """Reads a checkpoint.

        Args:
          epoch: one of `epochs()`.
          like: a state of the same structure, or its shapes and dtypes.

        Returns:
          The state, of NumPy arrays, and the notes.

        Raises:
          ValueError: the checkpoint is damaged, or of another structure; it names it and the remedy.
        """
        path = self.path / str(epoch)
        expected = _leaves(like)
        as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
        target = {"leaves": expected, "notes": 0, "digest": 0}
        try:
            with ocp.PyTreeCheckpointer() as checkpointer:
                content = checkpointer.restore(
                    path, item=target, restore_args=jax.tree.map(lambda _: as_numpy, target)
                )
            leaves, noted = content["leaves"], content["notes"]
            if not np.array_equal(content["digest"], _digest(leaves, noted)):
                raise ValueError("its content does not match its checksum")
            for name, leaf in leaves.items():
                if (leaf.shape, leaf.dtype) != (expected[name].shape, expected[name].dtype):
                    raise ValueError(f"{name} is {leaf.dtype}{list(leaf.shape)}")
        except Exception as error:  # of whatever kind orbax and its backends raise
            raise ValueError(
                f"the checkpoint {path} cannot be used: {_brief(error)}. Delete it to go on from the "
                f"one before, or, where there is none, from the start"
            ) from error
        state = jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name in expected])
        return state, json.loads(noted.tobytes())

    def delete(self) -> None:
        """Deletes all of them."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _remove_unfinished(self) -> None:
        """Deletes what a save that did not come to its end left behind."""
        for path in self.path.glob("*.orbax-checkpoint-tmp*"):
            shutil.rmtree(path, ignore_errors=True)


def _leaves(state: Any) -> dict[str, Any]:
    """The leaves by name, in the order of the tree."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(state)}


def _digest(leaves: dict[str, np.ndarray], noted: np.ndarray) -> np.ndarray:
    """SHA-256 of everything: what is stored beneath has no checksum of the arrays (orbax 0.12)."""
    digest = hashlib.sha256(noted.tobytes())
    for name in sorted(leaves):
        digest.update(f"{name} {leaves[name].dtype} {leaves[name].shape}".encode())
        digest.update(np.ascontiguousarray(leaves[name]).data)
    return np.frombuffer(digest.digest(), np.uint8)


def _brief(error: Exception) -> str:
    """The first line of an error's message, without its full stop."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")
