"""Writing files, and saying what went wrong."""

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

LOCK = ".lock"
"""The file that a process at work in a directory holds locked."""


@contextlib.contextmanager
def only_one_process(directory: Path) -> Iterator[None]:
    """Two processes at once would write each other's files. Makes the directory where there is none.

    Raises:
      ValueError: another process is at work there.
      OSError: it cannot be made, or not be written to.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / LOCK).open("w")
    except OSError as error:
        raise OSError(f"--out {directory} cannot be used: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another process is running into {directory}; name another directory, or wait for it"
            ) from None
        yield


def write_whole(path: Path, text: str) -> None:
    """Writes a file, in UTF-8: it is there, whole, or as it was before.

    Raises:
      OSError: it cannot be written; it names the file.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        sync(partial)
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise OSError(f"{path} cannot be written: {error.strerror}") from error


def exists(path: Path) -> bool:
    """Whether there is something; OSError, unlike with `Path.exists`, where that is not known."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():  # what it leads to is away
            raise
        return False
    return True


def files_below(directory: Path) -> list[Path]:
    """All files in a directory, at any depth, in a fixed order.

    Raises:
      OSError: a directory cannot be read, which `Path.rglob` passes over in silence.
    """

    def stop(error: OSError) -> None:
        raise error

    walked = os.walk(directory, onerror=stop)
    return sorted(Path(folder, name) for folder, _, names in walked for name in names)


def checksum(file: Path) -> str:
    """SHA-256 of a file; OSError, which names it, where it cannot be read."""
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        error.filename = str(file)  # an error of reading has none
        raise


def sync(path: Path, is_deep: bool = True) -> None:
    """Waits until a file, or a directory and all below, is on the disk.

    Raises:
      OSError: it is not, since the disk is full, or broken.
    """
    paths = [path]
    if is_deep and path.is_dir():
        paths += files_below(path)
    for one in paths:
        opened = os.open(one, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def reason(error: OSError) -> str:
    """Which file an error is about, and what the system said."""
    if error.strerror is None:
        return brief(error)
    return f"{os.fsdecode(error.filename)}: {error.strerror}" if error.filename else error.strerror


def brief(error: BaseException) -> str:
    """The first line of an error's message, without its full stop."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")
