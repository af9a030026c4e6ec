"""Writing files, and saying what went wrong."""

import contextlib
import fcntl
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
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise OSError(f"{path} cannot be written: {error.strerror}") from error


def brief(error: BaseException) -> str:
    """The first line of an error's message, without its full stop."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")
