"""Several processes that train as one, on JAX's distributed runtime."""

import dataclasses
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments.cluster import rendezvous
from experiments.cluster.lifeline import Lifeline
from experiments.cluster.rendezvous import Address
from experiments.common.cli import flag
from experiments.common.files import brief
from experiments.common.interrupts import Stopped
from gossip_jax import checks

_AUTO = "auto"
_LONGEST = 4096  # bytes of a text that is passed on


@dataclasses.dataclass(frozen=True)
class Processes:
    """Which of several processes this is."""

    coordinator: str | None = None
    """HOST:PORT of process 0, where several processes train as one. "auto" where JAX finds out for
    itself which process this is: under SLURM, Open MPI and Kubernetes, and on TPU pods."""

    num_processes: int | None = None
    """How many there are. Each is started by itself, with the same settings."""

    process_id: int | None = None
    """Which one this is, from 0."""

    peer_timeout: float = 60.0
    """Seconds without a sign of life after which another process counts as lost, and this one ends."""

    join_timeout: float = 300.0
    """Seconds to wait, at the start, for the other processes."""

    def checked(self) -> "Processes":
        """These; ValueError where they contradict each other or are out of range."""
        for name in ("peer_timeout", "join_timeout"):
            if not 1 <= getattr(self, name) <= 1e6:
                raise ValueError(
                    f"train: {flag(name)} must be 1 to 1e6 seconds; got {getattr(self, name)}"
                )
        numbered = {"--num-processes": self.num_processes, "--process-id": self.process_id}
        given = [name for name, value in numbered.items() if value is not None]
        missing = [name for name, value in numbered.items() if value is None]
        if self.coordinator in (None, _AUTO):
            if given:
                needed = "with --coordinator HOST:PORT" if self.coordinator is None else "without auto"
                raise ValueError(f"train: {given[0]} is for one of several processes, {needed}")
            return self
        if missing:
            raise ValueError(f"train: --coordinator {self.coordinator} needs {' and '.join(missing)}")
        Address.parse(self.coordinator or "")
        num_processes = checks.at_least_one("train", "--num-processes", self.num_processes)
        if not 0 <= (self.process_id or 0) < num_processes:
            raise ValueError(
                f"train: --process-id must be 0 to {num_processes - 1}, since there are "
                f"{num_processes} processes; got {self.process_id}"
            )
        return self

    @property
    def are_several(self) -> bool:
        """Whether there is more than this one."""
        return self.coordinator is not None

    def share_of(self, num_workers: int) -> int:
        """How many of the workers are in each process, as far as that is known before they meet.

        Raises:
          ValueError: they cannot be shared equally.
        """
        if self.num_processes is None:
            return num_workers if self.coordinator is None else 1
        if num_workers % self.num_processes:
            raise ValueError(
                f"train: the workers are shared equally among the processes, so --workers must be a "
                f"multiple of --num-processes; got {num_workers} for {self.num_processes} processes"
            )
        return num_workers // self.num_processes


def is_first() -> bool:
    """Whether this process is the one that writes files and prints; the only one is."""
    return jax.process_index() == 0


def require_one_worker_on_cpu(num_workers: int) -> None:
    """Raises ValueError where several processes have several workers each, on CPU devices.

    Jax 0.10 then hangs: collectives of one process's devices wait for each other.
    """
    processes = jax.process_count()
    if 1 < processes < num_workers and jax.default_backend() == "cpu":
        raise ValueError(
            f"train: on CPU, each of several processes has one worker, so there must be {num_workers} "
            f"processes for --workers {num_workers}; got {processes}"
        )


def from_first(text: str) -> str:
    """A text of process 0, of up to 4,096 bytes, in every process."""
    if jax.process_count() == 1:
        return text
    padded = np.frombuffer(os.fsencode(text).ljust(_LONGEST, b"\0"), np.uint8)
    return os.fsdecode(bytes(multihost_utils.broadcast_one_to_all(padded)).rstrip(b"\0"))


def most(number: int) -> int:
    """The largest of the numbers of 31 bits that the processes call it with."""
    if jax.process_count() == 1:
        return number
    return int(multihost_utils.process_allgather(np.int32(number)).max())


@contextmanager
def joined(processes: Processes, settings: Mapping[str, Any]) -> Iterator[None]:
    """Has several processes be one JAX system; where there is one only, does nothing.

    A process that ends with an exception in here tells the others, and these end too.

    Args:
      processes: which one this is. Call it before the first use of JAX's devices.
      settings: what must be the same in all of them.

    Raises:
      ValueError: another process did not come, or has other settings.
      OSError: the coordinator's port is in use.
    """
    if processes.coordinator is None:
        yield
        return
    lifeline = _join(processes, json.loads(json.dumps(settings, default=str)))
    try:
        yield
    except BaseException as error:
        # What stops a run is agreed on: all end in the same way, once the last file is written.
        if not isinstance(error.__context__, Stopped):
            _fail(lifeline, error)
        _leave(lifeline)
        raise
    _leave(lifeline)


def _join(processes: Processes, settings: Mapping[str, Any]) -> Lifeline:
    patience, timeout = processes.join_timeout, processes.peer_timeout
    on_terminate = signal.getsignal(signal.SIGTERM)
    # The lifeline sees a loss before JAX does, which would abort the process.
    heartbeat = int(2 * timeout) + 10
    if processes.coordinator == _AUTO:
        jax.distributed.initialize(
            initialization_timeout=int(patience), heartbeat_timeout_seconds=heartbeat
        )
        process, count = jax.process_index(), jax.process_count()
        address = _address_of_first()
        met = rendezvous.meet(address, process, count, settings, patience, timeout)
    else:
        address = Address.parse(processes.coordinator or "")
        process, count = processes.process_id or 0, processes.num_processes or 1
        met = rendezvous.meet(address, process, count, settings, patience, timeout)
        jax.distributed.initialize(
            str(address._replace(port=met.port)),
            count,
            process,
            cluster_detection_method="deactivate",
            initialization_timeout=int(patience),
            heartbeat_timeout_seconds=heartbeat,
        )
    # JAX's runtime has taken SIGTERM for a notice of preemption, after which it goes on.
    signal.signal(signal.SIGTERM, on_terminate or signal.SIG_DFL)
    return Lifeline(process, met.names, met.connections, timeout)


def _address_of_first() -> Address:
    """Where the others find process 0, by the name of its host."""
    return Address.parse(from_first(str(Address(socket.gethostname(), rendezvous.free_port()))))


def _leave(lifeline: Lifeline) -> None:
    jax.distributed.shutdown()  # waits for all
    lifeline.leave()


def _fail(lifeline: Lifeline, error: BaseException) -> None:
    """Ends this process as the exception would, but without waiting for the others."""
    if "Gloo" in str(error) or isinstance(error, jax.errors.JaxRuntimeError):
        lifeline.wait_for_verdict()
    code = 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else code
    else:
        traceback.print_exception(error)
    cause = error.__context__ if isinstance(error, SystemExit) else error
    lifeline.leave(reason=brief(cause or error))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
