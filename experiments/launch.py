"""Starts several processes of a training run on this machine: `python -m experiments.launch --help`."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import tyro

from experiments.cluster.lifeline import PEER_LOST
from experiments.cluster.rendezvous import free_port
from experiments.common.cli import reported
from gossip_jax import checks

_GRACE = 10.0  # seconds that the others have to end by themselves, once one has failed


@dataclasses.dataclass(frozen=True)
class Options:
    """Start a training run as several processes of this machine, which train as one.

    Arguments after -- are those of experiments.train. Interrupts are passed on; where one process
    fails, all are ended, and its exit code is returned.
    """

    processes: int
    """How many."""


def main() -> None:
    """Runs the command line: exits as the first process that failed, with 2 on bad input."""
    own, arguments = _divide(sys.argv[1:])
    options = tyro.cli(Options, prog="python -m experiments.launch", args=own)
    with reported(ValueError):
        checks.at_least_one("launch", "--processes", options.processes)
        for name in ("--coordinator", "--num-processes", "--process-id"):
            if any(argument.split("=")[0] == name for argument in arguments):
                raise ValueError(f"launch: {name} is set for each process; leave it out after --")
    train = [sys.executable, "-m", "experiments.train"]
    place = ["--coordinator", f"localhost:{free_port()}", "--num-processes", str(options.processes)]
    commands = [
        [*train, *arguments, *place, "--process-id", str(process)]
        for process in range(options.processes)
    ]
    raise SystemExit(run(commands))


def run(
    commands: Sequence[Sequence[str]], environment: Mapping[str, str] = os.environ, prefix: str = ""
) -> int:
    """Runs commands side by side, to their end, and passes on their output and its own signals.

    Args:
      commands: one for each process.
      environment: of all of them.
      prefix: what each line of output begins with, before the number of its process.

    Returns:
      0 where all end with 0; else the exit code of the first one to fail, 128 + n for signal n.
    """
    children = [_Child(command, environment, f"{prefix}{i}") for i, command in enumerate(commands)]

    def pass_on(number: int, frame: FrameType | None) -> None:
        for child in children:
            child.signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        first = _first_failure(children)
        if first is None:
            return 0
        _end(children)
        print(f"error: process {first.name} {first.described()}", file=sys.stderr, flush=True)
        return first.code
    finally:
        for child in children:
            child.kill()
        for number, handler in before.items():
            signal.signal(number, handler)


class _Child:
    """A process whose output is passed on line by line."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], name: str):
        self.name, self._has_said_why = name, False
        self._process = subprocess.Popen(
            command,
            env={**environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
            start_new_session=True,  # a terminal's interrupt would reach it twice
        )
        streams = ((self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr))
        self._threads = [threading.Thread(target=self._pass_on, args=pair) for pair in streams]
        for thread in self._threads:
            thread.start()

    def _pass_on(self, source: Any, target: Any) -> None:
        with source:
            for line in source:
                if line.startswith("[Gloo]"):  # a line for each pair that is connected
                    continue
                if line.startswith("error: "):
                    self._has_said_why = True
                target.write(f"[{self.name}] {line}")
                target.flush()

    @property
    def code(self) -> int:
        """As a shell has it; -1 while it runs."""
        code = self._process.poll()
        if code is None:
            return -1
        return code if code >= 0 else 128 - code

    def described(self) -> str:
        """How it ended, in words."""
        for thread in self._threads:
            thread.join()
        code = self._process.returncode
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return "failed, as it says above" if self._has_said_why else f"failed with exit code {code}"

    def signal(self, number: int) -> None:
        """Sends it a signal, if it still runs."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Ends it by force: JAX's runtime catches SIGTERM."""
        self.signal(signal.SIGKILL)
        self._process.wait()
        for thread in self._threads:
            thread.join()


def _first_failure(children: Sequence[_Child]) -> _Child | None:
    """Waits until one has failed, or all have ended well.

    Where several have, the one that did not end because of another was the first. One that hangs is not
    waited for.
    """
    deadline = float("inf")
    while True:
        codes = [child.code for child in children]
        failed = [child for child, code in zip(children, codes, strict=True) if code > 0]
        if any(child.code != PEER_LOST for child in failed):
            return next(child for child in failed if child.code != PEER_LOST)
        if failed:
            deadline = min(deadline, time.monotonic() + _GRACE)
            if -1 not in codes or time.monotonic() >= deadline:
                return failed[0]
        if not any(codes):
            return None
        time.sleep(0.1)


def _end(children: Sequence[_Child]) -> None:
    """Waits until all have ended by themselves, for a while."""
    deadline = time.monotonic() + _GRACE
    while any(child.code == -1 for child in children) and time.monotonic() < deadline:
        time.sleep(0.1)


def _divide(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before -- and what after."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return list(arguments[:at]), list(arguments[at + 1 :])


if __name__ == "__main__":
    main()
