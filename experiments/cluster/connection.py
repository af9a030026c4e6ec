"""A TCP connection that carries messages: JSON objects, a line each."""

import contextlib
import json
import socket
import threading
from typing import Any

_LONGEST = 1 << 16  # bytes in a message: what is longer is none of ours


class Connection:
    """Holds one end of a connection."""

    def __init__(self, stream: socket.socket, timeout: float):
        """Takes over a connected socket; sending and receiving give up after so many seconds."""
        stream.settimeout(timeout)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._read, self._sends = stream, b"", threading.Lock()

    def fileno(self) -> int:
        """`select` asks for it."""
        return self._socket.fileno()

    def send(self, **message: Any) -> None:
        """Sends a message; threads may do so at once.

        Raises:
          OSError: the connection is lost, or nobody reads at the other end.
        """
        with self._sends:
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]]:
        """Waits until something comes, and returns the messages that are complete, if any.

        Raises:
          ConnectionError: it was closed at the other end, or carries something else.
          OSError: it is lost, or nothing came in time.
        """
        received = self._socket.recv(_LONGEST)
        *lines, self._read = (self._read + received).split(b"\n")
        if not received:
            raise ConnectionError("its connection was closed")
        messages: list[Any]
        try:
            messages = [json.loads(line) for line in lines]
        except ValueError:
            messages = [None]
        if len(self._read) > _LONGEST or not all(isinstance(message, dict) for message in messages):
            raise ConnectionError("it sent what is no message")
        return messages

    def receive_one(self) -> dict[str, Any]:
        """Waits for a message, where one is due; raises as `receive`."""
        while not (messages := self.receive()):
            pass
        return messages[0]

    def finish(self, patience: float) -> None:
        """Closes it, once the other end has read all, or after so many seconds.

        To close it with something left unread would have TCP drop what was sent last.
        """
        with contextlib.suppress(OSError):
            self._socket.settimeout(patience)
            self._socket.shutdown(socket.SHUT_WR)
            while self._socket.recv(_LONGEST):
                pass
        self.close()

    def close(self) -> None:
        """Closes it at once."""
        self._socket.close()
