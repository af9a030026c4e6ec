"""Ctrl-C and SIGTERM: a run finishes what it is at and is saved; a second one does not wait."""

import os
import signal
import socket
import sys
import threading
import time
from types import FrameType, TracebackType

from rich.console import Console

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_APART = 5.0  # seconds: schedulers, and `timeout`, send one SIGTERM several times


class Stopped(Exception):
    """A run ends before its last epoch, and is saved; the program exits with a code of its own."""

    exit_code: int


class Interrupted(Stopped):
    """A run was stopped by a signal."""

    def __init__(self, signal_number: int, how_to_go_on: str):
        """`how_to_go_on` ends the message that the user sees."""
        super().__init__(f"interrupted; {how_to_go_on}")
        self.exit_code = 128 + signal_number


class Interrupts:
    """While this context is entered, a signal is noted, and the program goes on until it looks."""

    received: int | None = None
    """The number of the first signal that came."""

    def __init__(self, console: Console, what: str):
        """`console` is told that `what`, such as "the epoch", comes to its end first."""
        self._console, self._what = console, what

    def __enter__(self) -> "Interrupts":
        # A handler of Python's runs only once the compiled program returns, which may take an epoch. So
        # it does nothing, and a thread of its own reads what arrives here at once.
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        self._before = {number: signal.signal(number, _ignore) for number in _SIGNALS}
        self._wakeup = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._write.close()  # ends the thread
        self._thread.join()
        self._read.close()

    def _watch(self) -> None:
        first = time.monotonic()
        while arrived := self._read.recv(1):
            number = arrived[0]
            if number not in _SIGNALS:
                continue
            if self.received is None:
                self.received, first = number, time.monotonic()
                self._console.print(
                    f"stopping after {self._what}; Ctrl-C stops at once", soft_wrap=True
                )
            elif number == signal.SIGINT or time.monotonic() - first > _APART:
                self._console.show_cursor(True)
                print("error: stopped at once; the last checkpoint is as it was", file=sys.stderr)
                sys.stderr.flush()
                os._exit(128 + number)  # the main thread may be waiting for the compiled program


def _ignore(number: int, frame: FrameType | None) -> None:
    """The signal has been noted."""
