"""Several processes that train as one, on JAX's distributed runtime."""

import dataclasses
import hashlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments.cluster import gloo, rendezvous
from experiments.cluster.lifeline import Lifeline
from experiments.cluster.rendezvous import Address
from experiments.common.cli import flag
from experiments.common.files import brief
from experiments.common.interrupts import Stopped
from gossip_jax import checks

_AUTO = "auto"
_LONGEST = 512  # bytes of an address
_SLOWEST = 10  # times as long as the others, or before, something may take


class DisagreementError(ValueError):
    """Processes would train with other rounds than each other."""


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
    """Seconds without a sign of life, or that the others wait for one before an epoch, after which a
    process counts as lost, and all end."""

    progress_timeout: float = 3600.0
    """Seconds without progress after which processes count as hung, and all end: that the first epoch
    may take. Later ones may take ten times the longest before them, and --peer-timeout at least."""

    join_timeout: float = 300.0
    """Seconds to wait, at the start, for the other processes."""

    def checked(self) -> "Processes":
        """These; ValueError where they contradict each other or are out of range."""
        for name in ("peer_timeout", "progress_timeout", "join_timeout"):
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


def require_one_cpu_device() -> None:
    """Raises ValueError where one of several processes has several CPU devices.

    Jax 0.10 then hangs: collectives of one process's devices wait for each other.
    """
    if jax.process_count() > 1 and jax.default_backend() == "cpu" and jax.local_device_count() > 1:
        raise ValueError(
            f"train: on CPU, each of several processes has one device, with all its workers; this "
            f"one has {jax.local_device_count()}, as JAX_NUM_CPU_DEVICES or XLA_FLAGS say"
        )


def from_first(text: str, what: str) -> str:
    """A text of process 0, of up to 4,096 bytes, in every process, once all have come to `what`."""
    if _all is None:
        return text
    return str(_all.meet(what, text if is_first() else None)[0])


def most(number: int, what: str) -> int:
    """The largest of the numbers that the processes call it with, once all have come to `what`."""
    return number if _all is None else max(_all.meet(what, number))


def on_a_loss(how_to_go_on: str) -> None:
    """Has the message that another process is lost end with how to go on."""
    if _all is not None:
        _all.lifeline.how_to_go_on = how_to_go_on


@contextmanager
def together(
    program: jax.stages.Compiled, devices: Sequence[Any], decides: Any, what: str
) -> Iterator[None]:
    """What is run in here, all processes begin at once, in contact, and of one mind.

    Args:
      program: the one that is run. Those of its devices that talk to each other are put in contact.
      devices: the devices that it runs on, in its order.
      decides: a pytree of arrays of this process, on which it depends who talks to whom.
      what: what it is, as messages call it.

    Raises:
      DisagreementError: another process holds another `decides`: both would wait for ever.
    """
    if _all is None:
        yield
        return
    contact = _all.contact_of(program, devices)
    own = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(decides)))
    found = _all.meet(what, own.hexdigest(), limit=_all.longest_wait())
    if len(set(found)) > 1:
        others = [_all.names[i] for i, hash in enumerate(found) if hash != found[0]]
        raise DisagreementError(f"{', '.join(others)} drew other rounds than process 0 for {what}")
    contact()
    before = time.monotonic()
    yield
    seconds = time.monotonic() - before
    _all.longest = max(_all.longest, seconds)
    _all.meet(f"the end of {what}", patience=_all.longest_wait(seconds))


class _All:
    """All processes, as one of them sees them."""

    def __init__(self, lifeline: Lifeline, names: Sequence[str], processes: Processes):
        self.lifeline, self.names, self._processes = lifeline, names, processes
        self.longest = 0.0  # seconds that something done together took
        self._in_contact: list[Any] = []  # programs, or groups of devices, that are

    def meet(
        self, what: str, brings: Any = None, patience: float | None = None, limit: float | None = None
    ) -> list[Any]:
        """As `Lifeline.meet`; to the next meeting --progress-timeout, where no limit is given."""
        limit = self._processes.progress_timeout if limit is None else limit
        # Later the progress of the run is shown, and an epoch of the slowest is waited for.
        say = _say if not self.longest else lambda text: None
        return self.lifeline.meet(what, brings, patience, limit, say)

    def longest_wait(self, seconds: float | None = None) -> float:
        """For something done together, by what took so long here, or by the longest so far."""
        seconds = self.longest if seconds is None else seconds
        if not seconds:
            return self._processes.progress_timeout
        return max(self._processes.peer_timeout, _SLOWEST * seconds)

    def contact_of(
        self, program: jax.stages.Compiled | None, devices: Sequence[Any]
    ) -> Callable[[], object]:
        """What puts devices in contact that talk in a program, compiled; all, where there is none.

        Over gloo, each group of devices is connected when it first talks, and 30 seconds is all that it
        then waits for one of them.
        """
        if devices[0].platform != "cpu" or any(program is known for known in self._in_contact):
            return lambda: None
        self._in_contact.append(program)
        groups = gloo.groups(program.as_text() or "", len(devices)) if program else {gloo.ALL}
        new = sorted(group for group in groups if group not in self._in_contact)
        self._in_contact += new
        return gloo.contact(devices, new) if new else lambda: None


_all: _All | None = None


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
    global _all
    if processes.coordinator is None:
        yield
        return
    _all = _join(processes, json.loads(json.dumps(settings, default=str)))
    lifeline = _all.lifeline
    try:
        contact = _all.contact_of(None, jax.devices())
        _all.meet("the start")
        contact()
        yield
    except BaseException as error:
        # What stops a run is agreed on: all end in the same way, once the last file is written.
        if not isinstance(error.__context__, Stopped):
            _fail(lifeline, error)
        _leave(lifeline)
        raise
    finally:
        _all = None
    _leave(lifeline)


def _join(processes: Processes, settings: Mapping[str, Any]) -> _All:
    patience, timeout = processes.join_timeout, processes.peer_timeout
    on_terminate = signal.getsignal(signal.SIGTERM)
    # The lifeline sees a loss before JAX does, which would abort the process.
    heartbeat = int(2 * timeout) + 10
    if processes.coordinator == _AUTO:
        try:
            jax.distributed.initialize(
                initialization_timeout=int(patience), heartbeat_timeout_seconds=heartbeat
            )
        except ValueError as error:
            raise ValueError(
                f"train: --coordinator auto found no cluster here, such as SLURM, Open MPI, Kubernetes "
                f"or a TPU pod ({str(error).rstrip('.')}); give --coordinator HOST:PORT of process 0, "
                f"with --num-processes and --process-id"
            ) from error
        process, count = jax.process_index(), jax.process_count()
        address = _address_of_first()
        met = rendezvous.meet(address, process, count, settings, patience, timeout, _say)
    else:
        address = Address.parse(processes.coordinator or "")
        process, count = processes.process_id or 0, processes.num_processes or 1
        met = rendezvous.meet(address, process, count, settings, patience, timeout, _say)
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
    lifeline = Lifeline(process, met.names, met.connections, timeout)
    return _All(lifeline, met.names, processes)


def _address_of_first() -> Address:
    """Where the others find process 0, by the name of its host."""
    own = str(Address(socket.gethostname(), rendezvous.free_port())).encode()
    padded = np.frombuffer(own.ljust(_LONGEST, b"\0"), np.uint8)
    return Address.parse(bytes(multihost_utils.broadcast_one_to_all(padded)).rstrip(b"\0").decode())


def _say(text: str) -> None:
    print(text, flush=True)


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
