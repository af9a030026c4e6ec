"""Keeps watch over processes that train as one: none waits for ever for one that died, or hangs.

Each process holds a connection to process 0, and both send signs of life over it. JAX's runtime has
a watch of its own, but it aborts the process, and does not always say whose fault it was.

A thread gives signs of life also where the program itself hangs. So the processes meet, now and then:
who is late is named by those that wait, and who does not come to its next meeting, by itself.
"""

import contextlib
import ctypes
import dataclasses
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from experiments.cluster.connection import Connection

PEER_LOST = 3
"""The exit code of a process that ends because of another one."""

_SILENCE = 1.5  # seconds of waiting after which it is said who is waited for
_FAREWELL = 0.5  # seconds that process 0 leaves the others to end by themselves


@dataclasses.dataclass
class _Meeting:
    """Processes that wait for the others: process 0's view."""

    what: str
    since: float  # when the first came
    patience: float  # seconds that the others have from then on
    brought: dict[int, Any] = dataclasses.field(default_factory=dict)


class Lifeline:
    """Watches the other processes from a thread of its own, from when it is made until `leave`.

    Where one is lost it prints which, and ends this process.
    """

    how_to_go_on = ""
    """It ends that message, once it is known."""

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
        self._meetings: dict[int, _Meeting] = {}  # that not all have come to, in process 0
        self._held: dict[int, list[Any]] = {}  # what was brought to those that all have come to
        self._changed = threading.Condition()  # of these two
        self._number, self._last, self._limit, self._due = 0, "the start", math.inf, math.inf
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

    def meet(
        self,
        what: str,
        brings: Any = None,
        patience: float | None = None,
        limit: float = math.inf,
        say: Callable[[str], object] = lambda text: None,
    ) -> list[Any]:
        """Waits until all processes have come to this meeting, or ends them.

        Args:
          what: what it is before, as messages call it. All must meet for the same, in the same order.
          brings: what this process brings, as JSON holds it.
          patience: seconds that the others have once the first is there; the lifeline's where None.
          limit: seconds that this process then has until its next meeting.
          say: in process 0, is told how many are waited for, where that takes longer.

        Returns:
          What each process brought.
        """
        self._number += 1
        patience = self._timeout if patience is None else patience
        coming = {"meeting": self._number, "what": what, "brings": brings, "patience": patience}
        if self._process == 0:
            self._come(0, coming)
        else:
            with contextlib.suppress(OSError):  # the watch says why
                self._all_connections[0].send(**coming)
        with self._changed:
            said = 0
            while not self._changed.wait_for(lambda: self._number in self._held, _SILENCE):
                if meeting := self._meetings.get(self._number):  # which process 0 alone has
                    missing = len(self._names) - len(meeting.brought)
                    if missing != said:
                        said = missing
                        say(f"waiting for {missing} of {len(self._names)} processes")
            brought = self._held.pop(self._number)
        self._last, self._limit, self._due = what, limit, time.monotonic() + limit
        return brought

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
                heard, self._due = dict.fromkeys(heard, now), self._due + now - turned
                for meeting in self._open_meetings():
                    meeting.since = now
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
            self._require_progress(now)

    def _require_progress(self, now: float) -> None:
        """Ends the processes where one is late for a meeting, or makes no progress."""
        for meeting in self._open_meetings():
            if now - meeting.since > meeting.patience:
                late = (name for i, name in enumerate(self._names) if i not in meeting.brought)
                self._end(
                    f"{', '.join(late)} has not come to {meeting.what} within {meeting.patience:g} s "
                    f"of the first: slow, or hung"
                )
        if now > self._due:
            message = (
                f"{self._names[self._process]} has made no progress for {self._limit:g} s since "
                f"{self._last}: it hangs, or waits for one that does"
            )
            self._tell_all(end=message)
            time.sleep(_FAREWELL)
            self._end(message)

    def _open_meetings(self) -> list[_Meeting]:
        with self._changed:
            return list(self._meetings.values())

    def _come(self, process: int, coming: dict[str, Any]) -> None:
        """In process 0: one has come to a meeting."""
        number, what = int(coming["meeting"]), str(coming["what"])
        with self._changed:
            meeting = self._meetings.setdefault(
                number, _Meeting(what, time.monotonic(), float(coming["patience"]))
            )
            if what != meeting.what:
                self._end(f"{self._names[process]} is at {what}, and others at {meeting.what}")
            meeting.brought[process] = coming["brings"]
            if len(meeting.brought) < len(self._names):
                return
            del self._meetings[number]
            brought = [meeting.brought[process] for process in range(len(self._names))]
        self._tell_all(met=number, brought=brought)
        self._hold(number, brought)

    def _hold(self, number: int, brought: list[Any]) -> None:
        """All have come to a meeting."""
        with self._changed:
            self._held[number] = brought
            self._changed.notify_all()

    def _hear(self, process: int, message: dict[str, Any]) -> None:
        if "end" in message:
            self._end(str(message["end"]))
        if "meeting" in message:
            self._come(process, message)
        if "met" in message:
            self._hold(int(message["met"]), list(message["brought"]))
        if "left" in message:
            del self._connections[process]

    def _end(self, message: str) -> NoReturn:
        if self._process == 0:
            self._tell_all(end=message)
            time.sleep(_FAREWELL)
        said = "; ".join(
            filter(None, (f"error: {message}", "this process ends too", self.how_to_go_on))
        )
        print(said, file=sys.stderr, flush=True)
        os._exit(PEER_LOST)  # the main thread may be waiting for the one that is lost

    def _tell_all(self, **message: Any) -> None:
        for connection in list(self._connections.values()):
            with contextlib.suppress(OSError):
                connection.send(**message)

    def _delay_aborts(self) -> None:
        """Has JAX's abort of this process, where process 0 dies, wait for what `_watch` says.

        Jax 0.10 leaves no other way: a callback of its client for a lost coordinator ends in
        std::bad_cast, with `jax_enable_recoverability` it aborts all the same, and a handler of
        Python's returns at once.
        """
        self._handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: self.wait_for_verdict())
        ctypes.CDLL(None).signal(signal.SIGABRT, self._handler)
