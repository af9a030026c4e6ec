"""Checkpoints of a run, written with orbax: it goes on, to the bit, from the last whole one."""

import contextlib
import json
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from experiments.common import strict_json
from experiments.common.files import brief, checksum, files_below, reason, sync

_KEPT = 2  # of runs that train together one may be an epoch ahead when they are stopped
_CHECKSUMS = "sha256.json"  # of the other files in a checkpoint
_SPARE = 1_000_000  # bytes that the files of a checkpoint may take beside the arrays

# What these log of an error, with tracebacks, is in the exception as well.
for _name in ("absl", "asyncio"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class DamagedCheckpointError(ValueError):
    """A file of a checkpoint was read, and is not what was written: it is torn, changed, or missing."""


class Checkpoints:
    """The checkpoints of one run, by epoch, in a directory of their own."""

    def __init__(self, path: Path):
        """Names the directory; nothing is made yet."""
        self.path = path.absolute()
        self._damaged: set[int] = set()  # the epochs whose checkpoints were found to be

    def epochs(self) -> list[int]:
        """The epochs after which there is a checkpoint, in ascending order.

        Raises:
          OSError: the directory cannot be read: whether there are any is not known.
        """
        try:
            # A link could lead to what is none of the run's.
            with os.scandir(self.path) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not os.path.lexists(self.path):
                return []
            raise OSError(
                f"the checkpoints in {self.path} cannot be read: {reason(error)}; nothing was changed"
            ) from error
        return sorted(int(name) for name in names if name.isdecimal() and name == str(int(name)))

    def save(self, epoch: int, state: Any, notes: dict[str, Any], spared: Collection[int] = ()) -> None:
        """Writes a checkpoint: it is there, whole, or not at all. Others go, but for the one before.

        They go once it is there. Those that were found to be damaged are kept, under another name.

        Args:
          epoch: how many were trained.
          state: a pytree of arrays.
          notes: what else is to be known, as JSON holds it.
          spared: earlier epochs whose checkpoints stay as well.

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
            with _in_utf8(self.path) as here, _checkpointer() as checkpointer:
                checkpointer.save(here / unfinished.name, args=ocp.args.PyTreeSave(content))
            (unfinished / _CHECKSUMS).write_text(json.dumps(_checksums(unfinished)), encoding="utf-8")
            sync(unfinished)  # some file systems say only now that they have no room
            replaced = self._set_aside(epoch, "damaged" if epoch in self._damaged else "replaced")
            try:
                os.replace(unfinished, path)
                sync(self.path, is_deep=False)
            except OSError:
                if replaced is not None and not path.exists():
                    replaced.rename(path)
                raise
        except Exception as error:  # of whatever kind orbax and its backends raise
            self._remove_unfinished()
            raise OSError(f"the checkpoint {path} cannot be written: {brief(error)}") from error
        if replaced is not None and epoch not in self._damaged:
            shutil.rmtree(replaced)
        self._damaged.discard(epoch)
        for other in sorted(self._damaged & set(self.epochs())):
            self._set_aside(other, "damaged")
        # Later ones are of a course that was given up.
        course = [saved for saved in self.epochs() if saved <= epoch]
        kept = {*course[-_KEPT:], *spared} & set(course)
        for other in set(self.epochs()) - kept:
            shutil.rmtree(self.path / str(other))

    def notes(self, epoch: int) -> dict[str, Any]:
        """The notes of a checkpoint, whatever the structure of its state.

        Raises:
          DamagedCheckpointError: one of its files is damaged; it names it.
          OSError: one of its files cannot be read; it names it and the reason.
          ValueError: it is of another structure.
        """
        notes = self._read(epoch, {"notes": 0})["notes"]
        try:
            return dict(json.loads(notes.tobytes()))
        except (ValueError, TypeError, AttributeError) as error:
            raise self._unusable(epoch, "its notes are not JSON") from error

    def restore(self, epoch: int, like: Any) -> tuple[Any, dict[str, Any]]:
        """Reads a checkpoint.

        Args:
          epoch: one of `epochs()`.
          like: a state of the same structure, or its shapes and dtypes.

        Returns:
          The state, of NumPy arrays, and the notes.

        Raises:
          DamagedCheckpointError: one of its files is damaged; it names it.
          OSError: one of its files cannot be read; it names it and the reason.
          ValueError: the checkpoint is of another structure.
        """
        expected = _leaves(like)
        content = self._read(epoch, {"leaves": expected, "notes": 0})
        leaves = content["leaves"]
        for name, leaf in leaves.items():
            here = expected[name]
            if (leaf.shape, leaf.dtype) != (here.shape, here.dtype):
                raise self._unusable(
                    epoch,
                    f"{name} is {leaf.dtype}{list(leaf.shape)} there, "
                    f"{here.dtype}{list(here.shape)} here",
                )
        state = jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name in expected])
        return state, json.loads(content["notes"].tobytes())

    def delete(self) -> None:
        """Deletes all of them, but for those that were found to be damaged."""
        epochs = set(self.epochs())
        for epoch in epochs & self._damaged:
            self._set_aside(epoch, "damaged")
        for epoch in epochs - self._damaged:
            shutil.rmtree(self.path / str(epoch), ignore_errors=True)
        self._remove_unfinished()
        with contextlib.suppress(OSError):  # there is something else
            self.path.rmdir()

    def _read(self, epoch: int, target: dict[str, Any]) -> dict[str, Any]:
        """What `target` names of a checkpoint, as NumPy arrays."""
        path = self.path / str(epoch)
        try:
            _require_whole(path)
        except OSError as error:
            raise self._unreadable(epoch, reason(error)) from error
        except (ValueError, TypeError, RecursionError) as error:  # of a mutated file of checksums, too
            self._damaged.add(epoch)
            raise DamagedCheckpointError(f"the checkpoint {path} is damaged: {brief(error)}") from error
        as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
        restore = ocp.args.PyTreeRestore(
            item=target,
            restore_args=jax.tree.map(lambda _: as_numpy, target),
            partial_restore="leaves" not in target,
        )
        try:
            with _in_utf8(self.path) as here, _checkpointer() as checkpointer:
                return checkpointer.restore(here / path.name, args=restore)
        except OSError as error:
            raise self._unreadable(epoch, reason(error)) from error
        except Exception as error:  # of whatever kind orbax and its backends raise
            raise self._unusable(epoch, brief(error)) from error

    def _unreadable(self, epoch: int, why: str) -> OSError:
        return OSError(
            f"the checkpoint {self.path / str(epoch)} cannot be read: {why}; nothing was changed"
        )

    def _unusable(self, epoch: int, why: str) -> ValueError:
        return ValueError(
            f"the checkpoint {self.path / str(epoch)} cannot be used: {why}. It is whole, and nothing "
            f"was changed; move it elsewhere to go on from the one before, or, where there is none, "
            f"from the start"
        )

    def _set_aside(self, epoch: int, why: str) -> Path | None:
        """Renames a checkpoint, where there is one, to a name that no other has: which it returns."""
        path, number = self.path / str(epoch), 1
        if not path.is_dir():
            return None
        while os.path.lexists(aside := self.path / f"{epoch}.{why}{f'-{number}' * (number > 1)}"):
            number += 1
        return path.rename(aside)

    def _remove_unfinished(self) -> None:
        """Deletes what a save that did not come to its end left behind."""
        for path in self.path.glob("*.unfinished*"):
            shutil.rmtree(path, ignore_errors=True)


def _checkpointer() -> ocp.Checkpointer:
    """Orbax's, for this process: it would have several processes wait for each other."""
    own = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own})
    # Compressing parameters saves 7% of the disk, and takes as much memory as they do once more.
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone, use_compression=False)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


@contextlib.contextmanager
def _in_utf8(directory: Path) -> Iterator[Path]:
    """The directory by a name in UTF-8, which orbax's backends need."""
    try:
        str(directory).encode()
    except UnicodeEncodeError:
        with tempfile.TemporaryDirectory() as elsewhere:
            link = Path(elsewhere, "checkpoints")
            link.symlink_to(directory)
            yield link
    else:
        yield directory


def _leaves(state: Any) -> dict[str, Any]:
    """The leaves by name, in the order of the tree."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(state)}


def _checksums(path: Path) -> dict[str, str]:
    """SHA-256 of each file in a checkpoint."""
    digests = {}
    for file in files_below(path):
        if file.name != _CHECKSUMS and stat.S_ISREG(file.stat().st_mode):
            digests[file.relative_to(path).as_posix()] = checksum(file)
    return digests


def _require_whole(path: Path) -> None:
    """Raises ValueError unless every file is as it was written, OSError where one cannot be read.

    Orbax 0.12 has no checksum of the arrays; and where it meets a damaged file it fails while it reads
    others, and those threads then print tracebacks.
    """
    found = _checksums(path)
    if not os.path.lexists(path / _CHECKSUMS):
        raise ValueError(f"its file {_CHECKSUMS} is missing")
    content = (path / _CHECKSUMS).read_bytes()
    try:
        written = dict(json.loads(content))
    except (ValueError, TypeError) as error:
        raise ValueError(f"its file {_CHECKSUMS} is damaged") from error
    for name in sorted({*found, *written}):
        if found.get(name) != written.get(name):
            state = "damaged" if name in found and name in written else "missing"
            raise ValueError(f"its file {name} is {state if name in written else 'not of it'}")


def _require_space(path: Path, content: Any) -> None:
    """Raises OSError where a disk is full; orbax, too, would, after tracebacks from its threads."""
    needed = sum(leaf.nbytes for leaf in jax.tree.leaves(content)) + _SPARE
    free = shutil.disk_usage(path).free
    if free < needed:
        raise OSError(f"it takes up to {needed / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free")
