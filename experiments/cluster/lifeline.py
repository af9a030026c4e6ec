"""Keeps watch over processes that train as one: none waits for ever for one that died.

Each process holds a connection to process 0, and both send signs of life over it. JAX's runtime has
a watch of its own, but it aborts the process, and does not always say whose fault it was.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from experiments.cluster.connection import Connection

PEER_LOST = 3
"""The exit code of a process that ends because of another one."""

_FAREWELL = 0.5  # seconds that process 0 leaves the others to end by themselves


class Lifeline:
    """Watches the other processes from a thread of its own, from when it is made until `leave`.

    Where one is lost it prints which, and ends this process.
    """

    def __init__(
        self,
        process: int,
        names: Sequence[str],
        connections: Mapping[int, Connection],
        timeout: float,
    ):
        """Begins to watch.

        Args:
          process: which one this is.
          names: of all processes, as messages call them.
          connections: by process: those of process 0 to all others, or that to process 0.
          timeout: seconds without a sign of life after which a process counts as lost.
        """
        self._process, self._names, self._timeout = process, names, timeout
        self._connections = dict(connections)  # to those that have not left
        self._all_connections = tuple(connections.values())
        self._is_over = threading.Event()
        self._delay_aborts()
        self._thread = threading.Thread(target=self._watch, name="lifeline", daemon=True)
        self._thread.start()

    def leave(self, reason: str | None = None) -> None:
        """Ends the watch, and tells the others: with a reason, they end too."""
        self._is_over.set()
        self._thread.join()
        if reason is None:
            self._tell_all(left=True)
        else:
            self._tell_all(end=f"{self._names[self._process]} failed: {reason}")
        for connection in self._all_connections:
            connection.finish(_FAREWELL)

    def wait_for_verdict(self) -> None:
        """Waits while it is not known who broke the connections; returns where nobody did."""
        time.sleep(self._timeout + 2)

    def _watch(self) -> None:
        interval = min(self._timeout / 5, 1.0)
        heard = dict.fromkeys(self._connections, time.monotonic())
        turned = sent = time.monotonic()
        while not self._is_over.is_set():
            readable, _, _ = select.select(list(self._connections.values()), [], [], interval)
            now = time.monotonic()
            if now - turned > self._timeout / 2:  # this process had stopped: nobody else is to blame
                heard = dict.fromkeys(heard, now)
            is_due, turned = now - sent >= interval, now
            sent = now if is_due else sent
            for process, connection in list(self._connections.items()):
                try:
                    if connection in readable:
                        heard[process] = now
                        for message in connection.receive():
                            self._hear(process, message)
                    if is_due and process in self._connections:
                        connection.send(alive=True)
                except OSError as error:
                    self._end(f"{self._names[process]} has ended: {error}")
                if now - heard[process] > self._timeout:
                    self._end(
                        f"{self._names[process]} has given no sign of life for {self._timeout:g} s"
                    )

    def _hear(self, process: int, message: dict[str, Any]) -> None:
        if "end" in message:
            self._end(str(message["end"]))
        if "left" in message:
            del self._connections[process]

    def _end(self, message: str) -> NoReturn:
        if self._process == 0:
            self._tell_all(end=message)
            time.sleep(_FAREWELL)
        print(f"error: {message}; this process ends too", file=sys.stderr, flush=True)
        os._exit(PEER_LOST)  # the main thread may be waiting for the one that is lost

    def _tell_all(self, **message: Any) -> None:
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.send(**message)

    def _delay_aborts(self) -> None:
        """Where process 0 dies, JAX aborts the others at once: has that wait for what `_watch` says."""
        self._handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: self.wait_for_verdict())
        ctypes.CDLL(None).signal(signal.SIGABRT, self._handler)
