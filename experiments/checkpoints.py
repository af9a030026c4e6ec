"""Checkpoints of a run, written with orbax: it goes on, to the bit, from the last whole one."""

import hashlib
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from experiments import strict_json
from experiments.files import brief

_KEPT = 2  # of runs that train together one may be an epoch ahead when they are stopped
_CHECKSUMS = "sha256.json"  # of the other files in a checkpoint
_SPARE = 1_000_000  # bytes that the files of a checkpoint may take beside the arrays

# What these log of an error, with tracebacks, is in the exception as well.
for _name in ("absl", "asyncio"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


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
        """Writes a checkpoint: it is there, whole, or not at all. Others go, but for the one before.

        Args:
          epoch: how many were trained.
          state: a pytree of arrays.
          notes: what else is to be known, as JSON holds it.

        Raises:
          OSError: it cannot be written; the ones before are as they were.
        """
        noted = np.frombuffer(strict_json.dumps(notes).encode(), np.uint8)
        content = {"leaves": _leaves(jax.device_get(state)), "notes": noted}
        path, unfinished = self.path / str(epoch), self.path / f"{epoch}.unfinished"
        try:
            self._remove_unfinished()
            self.path.mkdir(parents=True, exist_ok=True)
            _require_space(self.path, content)
            with ocp.PyTreeCheckpointer() as checkpointer:
                checkpointer.save(unfinished, content)
            (unfinished / _CHECKSUMS).write_text(json.dumps(_checksums(unfinished)), encoding="utf-8")
            shutil.rmtree(path, ignore_errors=True)
            os.replace(unfinished, path)
        except Exception as error:  # of whatever kind orbax and its backends raise
            self._remove_unfinished()
            raise OSError(f"the checkpoint {path} cannot be written: {brief(error)}") from error
        # Later ones are of a course that was given up.
        kept = [saved for saved in self.epochs() if saved <= epoch][-_KEPT:]
        for other in set(self.epochs()) - set(kept):
            shutil.rmtree(self.path / str(other))

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
        target = {"leaves": expected, "notes": 0}
        try:
            _require_whole(path)
            with ocp.PyTreeCheckpointer() as checkpointer:
                content = checkpointer.restore(
                    path, item=target, restore_args=jax.tree.map(lambda _: as_numpy, target)
                )
            leaves, noted = content["leaves"], content["notes"]
            for name, leaf in leaves.items():
                here = expected[name]
                if (leaf.shape, leaf.dtype) != (here.shape, here.dtype):
                    raise ValueError(
                        f"{name} is {leaf.dtype}{list(leaf.shape)} there, "
                        f"{here.dtype}{list(here.shape)} here"
                    )
        except Exception as error:  # of whatever kind orbax and its backends raise
            raise ValueError(
                f"the checkpoint {path} cannot be used: {brief(error)}. Delete it to go on from the "
                f"one before, or, where there is none, from the start"
            ) from error
        state = jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name in expected])
        return state, json.loads(noted.tobytes())

    def delete(self) -> None:
        """Deletes all of them."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _remove_unfinished(self) -> None:
        """Deletes what a save that did not come to its end left behind."""
        for path in self.path.glob("*.unfinished*"):
            shutil.rmtree(path, ignore_errors=True)


def _leaves(state: Any) -> dict[str, Any]:
    """The leaves by name, in the order of the tree."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(state)}


def _checksums(path: Path) -> dict[str, str]:
    """SHA-256 of each file in a checkpoint."""
    digests = {}
    for file in sorted(path.rglob("*")):
        if file.is_file() and file.name != _CHECKSUMS:
            with file.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
            digests[file.relative_to(path).as_posix()] = digest
    return digests


def _require_whole(path: Path) -> None:
    """Raises ValueError unless every file is as it was written.

    Orbax 0.12 has no checksum of the arrays; and where it meets a damaged file it fails while it reads
    others, and those threads then print tracebacks.
    """
    found = _checksums(path)
    for name, checksum in json.loads((path / _CHECKSUMS).read_bytes()).items():
        if found.get(name) != checksum:
            raise ValueError(f"its file {name} is {'damaged' if name in found else 'missing'}")


def _require_space(path: Path, content: Any) -> None:
    """Raises OSError where a disk is full; orbax, too, would, after tracebacks from its threads."""
    needed = sum(leaf.nbytes for leaf in jax.tree.leaves(content)) + _SPARE
    free = shutil.disk_usage(path).free
    if free < needed:
        raise OSError(f"it takes up to {needed / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free")
