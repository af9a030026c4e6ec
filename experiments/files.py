"""Writing files, and saying what went wrong."""

import contextlib
import os
from pathlib import Path


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
