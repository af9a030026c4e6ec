"""How processes that are to train as one find each other: process 0 waits for the others."""

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from experiments.cluster.connection import Connection
from experiments.common import strict_json

_RETRY = 0.2  # seconds
_SILENCE = 1.5  # seconds of waiting after which it is said what is waited for
_FAREWELL = 1.0  # seconds for a process to read why it was refused


class Address(NamedTuple):
    """Where process 0 is."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """From HOST:PORT; ValueError where it is something else."""
        host, _, port = text.rpartition(":")
        if not (host and port.isascii() and port.isdecimal() and 0 < int(port) < 2**16):
            raise ValueError(f"--coordinator must be HOST:PORT, with a port below 65536; got {text!r}")
        return cls(host.strip("[]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Met(NamedTuple):
    """What comes of a rendezvous."""

    names: list[str]  # of all processes, as messages call them
    connections: dict[int, Connection]  # of process 0 to all others, or that to process 0
    port: int  # a free one, of process 0's host


def meet(
    address: Address,
    process: int,
    num_processes: int,
    settings: Mapping[str, Any],
    patience: float,
    timeout: float,
    say: Callable[[str], object] = lambda text: None,
) -> Met:
    """Waits until all processes are there.

    Args:
      address: of process 0.
      process: which one this is.
      num_processes: how many there are.
      settings: what must be the same in all of them, as JSON holds it.
      patience: seconds to wait for the others.
      timeout: seconds after which a connection, once made, counts as lost.
      say: is told what is waited for, where that takes longer.

    Raises:
      ValueError: one did not come, or has other settings.
      OSError: the port is in use.
    """
    hello = {
        "process": process,
        "of": num_processes,
        "name": f"process {process} (host {socket.gethostname()}, PID {os.getpid()})",
        "settings": dict(settings),
    }
    deadline = time.monotonic() + patience
    if process == 0:
        return _host(address, hello, patience, timeout, say)
    connection = _reach(address, deadline, patience, timeout, say)
    try:
        with contextlib.suppress(ConnectionError):  # what is read then says it, too
            connection.send(**hello)
        answer = _wait(connection, deadline + timeout)
        if "refused" in answer:
            raise ValueError(answer["refused"])
    except BaseException:
        connection.close()
        raise
    return Met(answer["names"], {0: connection}, answer["port"])


def _reach(
    address: Address, deadline: float, patience: float, timeout: float, say: Callable[[str], object]
) -> Connection:
    is_silent = True
    while True:
        try:
            return Connection(socket.create_connection(address, timeout), timeout)
        except OSError as error:
            if time.monotonic() > deadline:
                raise ValueError(
                    f"process 0 cannot be reached at --coordinator {address} since {patience:g} s: "
                    f"{error.strerror or error}"
                ) from error
            if is_silent and time.monotonic() > deadline - patience + _SILENCE:
                say(f"waiting for process 0 at {address}")
                is_silent = False
            time.sleep(_RETRY)


def _wait(connection: Connection, deadline: float) -> dict[str, Any]:
    """Process 0's answer, which comes once all are there."""
    while time.monotonic() < deadline:
        if select.select([connection], [], [], 1.0)[0]:
            with contextlib.suppress(ConnectionError):
                return connection.receive_one()
            break
    raise ValueError("process 0 ended, or was not waiting for this one: all its processes were there")


def _host(
    address: Address,
    hello: dict[str, Any],
    patience: float,
    timeout: float,
    say: Callable[[str], object],
) -> Met:
    connections: dict[int, Connection] = {}
    try:
        hellos = _welcome(address, hello, patience, timeout, connections, say)
    except ValueError as error:
        for connection in connections.values():
            _refuse(connection, str(error))
        raise
    names = [hellos[process]["name"] for process in sorted(hellos)]
    port = free_port()
    for connection in connections.values():
        connection.send(names=names, port=port)
    return Met(names, connections, port)


def _welcome(
    address: Address,
    own: dict[str, Any],
    patience: float,
    timeout: float,
    connections: dict[int, Connection],
    say: Callable[[str], object],
) -> dict[int, dict[str, Any]]:
    """What each process says of itself; fills in the connections as they come."""
    hellos, deadline, said = {0: own}, time.monotonic() + patience, 0
    with _listen(address) as listener:
        while len(hellos) < own["of"]:
            listener.settimeout(min(max(deadline - time.monotonic(), 0.01), _SILENCE))
            missing = [str(process) for process in range(own["of"]) if process not in hellos]
            try:
                stream, _ = listener.accept()
            except TimeoutError:
                if time.monotonic() >= deadline:
                    raise ValueError(
                        f"of {own['of']} processes, {', '.join(missing)} did not come within "
                        f"{patience:g} s"
                    ) from None
                if len(missing) != said:
                    said = len(missing)
                    say(f"waiting for {said} of {own['of']} processes")
                continue
            connection = Connection(stream, timeout)
            try:
                hello = connection.receive_one()
                process, name = int(hello["process"]), str(hello["name"])
            except (OSError, KeyError, TypeError, ValueError):  # a stranger's
                connection.close()
                continue
            if process in hellos:
                _refuse(connection, f"there are two processes {process}: {name} is one too many")
                continue
            connections[process] = connection
            _require_alike(own, hello)
            hellos[process] = hello
    return hellos


def _refuse(connection: Connection, reason: str) -> None:
    with contextlib.suppress(OSError):
        connection.send(refused=reason)
    connection.finish(_FAREWELL)


def _listen(address: Address) -> socket.socket:
    try:
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        return socket.create_server(
            ("", address.port), family=family, dualstack_ipv6=family == socket.AF_INET6
        )
    except OSError as error:
        raise OSError(
            f"--coordinator {address}: process 0 cannot listen at this port: {error.strerror}"
        ) from error


def _require_alike(own: dict[str, Any], hello: dict[str, Any]) -> None:
    name, of, settings = hello["name"], hello.get("of"), hello.get("settings")
    if of != own["of"]:
        raise ValueError(
            f"{name} was started with --num-processes {of}, and process 0 with {own['of']}"
        )
    if differences := strict_json.differences(dict(settings or {}), own["settings"], "in process 0"):
        raise ValueError(f"{name} has other settings: {'; '.join(differences)}")


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.create_server(("", 0)) as listener:
        return listener.getsockname()[1]
