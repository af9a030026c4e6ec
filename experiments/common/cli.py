"""What every command of the experiments does alike: errors without a traceback, and plain text."""

import contextlib
import io
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import jax
from rich.console import Console

from experiments.common.interrupts import Stopped


def make_console(quiet: bool = False) -> Console:
    """A console that prints text as it is, whatever brackets and bytes are in a path, or nothing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return Console(markup=False, highlight=False, quiet=quiet)


def flag(name: str) -> str:
    """A setting as the command line has it."""
    return "--" + name.replace("_", "-")


def new_path(name: str) -> Path:
    """Where results go that the user gave no place."""
    return Path("runs", f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")


def make_cpu_devices(number: int) -> None:
    """Has JAX make so many CPU devices. To be called before the first use of JAX's devices.

    It changes nothing where the environment says how many to make, nor on a GPU or TPU.
    """
    if "JAX_NUM_CPU_DEVICES" not in os.environ and "device_count" not in os.environ.get(
        "XLA_FLAGS", ""
    ):
        jax.config.update("jax_num_cpu_devices", number)


@contextlib.contextmanager
def reported(*mistakes: type[Exception], kept: Path | None = None) -> Iterator[None]:
    """Ends the program with a message on an interrupt, where memory is short, and on `mistakes`.

    Args:
      mistakes: the exceptions that bad input raises here: the program exits with 2.
      kept: where what was done so far is to be found, after an interrupt: it exits with 130, or with
        the code of a `Stopped`.
    """
    try:
        yield
    except Stopped as stopped:
        _fail(str(stopped), stopped.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted" + (f"; what was measured so far is in {kept}" if kept else ""), code=130)
    except jax.errors.JaxRuntimeError as error:
        if "memory" not in str(error):
            raise
        _fail(f"out of memory: lower --width, --workers or --batch-size ({str(error).splitlines()[0]})")
    except mistakes as error:
        _fail(str(error))


def _fail(message: str, code: int = 2) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(code)
