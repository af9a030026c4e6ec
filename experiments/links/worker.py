"""One worker of `experiments.network`: trains behind its link, and measures.

Run as `python -m experiments.links.worker JOB PROCESS`, with JOB the fields of `Job` in JSON.
"""

import dataclasses
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments.cluster.processes import Processes, is_first, joined
from experiments.common import memory, numerics
from experiments.common.cache import keep_programs
from experiments.common.cli import make_cpu_devices, reported
from experiments.links import records as link_records
from experiments.links.namespaces import DEVICE, UNLIMITED, address, bits_per_second
from experiments.links.records import LinkRecord
from experiments.runs.provenance import surroundings
from experiments.tasks.classification import ACCURACY
from experiments.tasks.registry import TASKS
from experiments.training import loop, run
from experiments.training.config import Config
from experiments.training.loop import Epoch
from experiments.training.program import Programs
from experiments.training.run import Setup
from gossip_jax import training
from gossip_jax.traffic import Traffic

_VALIDATION = 1_000  # examples: a validation is frequent, and its time is not measured
_LONGEST_PART = 100  # updates: workers that do not talk need not wait for others within a part
_LONGEST_UNLIMITED = 25  # the same without a limit, where the time to the accuracy is measured
_UPDATE = 0.05  # seconds to compute one, as a rough guess
_ENDLESS = 2**30  # epochs
_PARTS = 4  # of a measurement, as many as that guess can tell


@dataclasses.dataclass(frozen=True)
class Job:
    """What all workers do, one run after the other, at one rate."""

    runs: dict[str, dict[str, Any]]  # settings of experiments.train, by the file of the record
    dataset: str
    rate: str
    workers: int
    port: int  # of the coordinator
    accuracy: float  # of the validation examples
    seconds: float  # to train with each, at least two parts
    longest: float  # the same at an unlimited rate, where the accuracy ends a run
    data_dir: str | None


def main() -> None:
    """Runs the command line."""
    job, process = Job(**json.loads(sys.argv[1])), int(sys.argv[2])
    memory.return_large_blocks()
    with reported(ValueError, OSError):
        processes = Processes(f"{address(0)}:{job.port}", job.workers, process)
        make_cpu_devices(1)
        keep_programs()
        with joined(processes, numerics.here()):
            dataset = TASKS[job.dataset].load(Path(job.data_dir) if job.data_dir else None)
            programs = Programs(dataset)
            for path, settings in job.runs.items():
                config = Config(**settings, epochs=_ENDLESS, validate_every=_ENDLESS).checked()
                with reported(ValueError):  # within, so that the others are told why
                    setup = run.set_up(config, dataset, programs)
                record = measure(job, config, setup)
                if is_first():
                    link_records.write(Path(path), record)
                    print(f"{Path(path).stem}: {record.updates_per_second:.3g} updates/s", flush=True)


def measure(job: Job, config: Config, setup: Setup) -> LinkRecord:
    """Trains until the time is over or, at an unlimited rate, the accuracy is reached."""
    few = jax.tree.map(lambda leaf: leaf[:_VALIDATION], setup.validation)
    setup = setup._replace(updates_per_epoch=_part(job, config, setup), validation=few)
    measure = _Measure(job, setup)
    loop.train([setup], [run.start(setup)], (measure,))
    return measure.record()


class _Measure:
    """An observer that measures every part of a training run, and ends it when that is enough."""

    def __init__(self, job: Job, setup: Setup):
        self._job, self._setup = job, setup
        self._began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._parts: list[tuple[Traffic, float, np.ndarray, np.ndarray]] = []
        self._samples: list[list[float]] = []  # updates, seconds, accuracy
        self._reached: list[float] | None = None
        self._seconds, self._counted = 0.0, _counters()

    def __call__(self, after: Sequence[Epoch]) -> bool:
        """Notes the seconds of the slowest worker, and the bytes sent and framed by each."""
        job, progress = self._job, after[0].progress
        counted = _counters()
        own = np.array([progress.seconds - self._seconds, *(counted - self._counted)], np.float32)
        every = multihost_utils.process_allgather(own)
        self._parts.append((progress.traffic, float(every[:, 0].max()), every[:, 1], every[:, 2]))
        total = sum(seconds for _, seconds, *_ in self._parts)
        scores = run.scores(self._setup, progress.state, self._setup.validation)
        accuracy = float(scores[ACCURACY.name].mean())
        updates = progress.epoch * self._setup.updates_per_epoch
        self._samples.append([updates, total, accuracy])
        if self._reached is None and accuracy >= job.accuracy:
            self._reached = [updates, total]
        # What was sent to get here is not of the next part.
        self._seconds, self._counted = progress.seconds, _counters()
        # Over a limited link always as long, whatever is reached: what is measured there is the speed.
        limit = job.longest if job.rate == UNLIMITED else job.seconds
        is_enough = total >= limit or (self._reached is not None and job.rate == UNLIMITED)
        return len(self._parts) > 1 and is_enough

    def record(self) -> LinkRecord:
        """All but the first part, in which connections are made."""
        job, setup = self._job, self._setup
        first, last = self._parts[0][0], self._parts[-1][0]
        _, seconds, sent, framed = (list(column) for column in zip(*self._parts[1:], strict=True))
        return LinkRecord(
            settings=link_records.settings(setup.config, job.rate, job.accuracy),
            updates=len(seconds) * setup.updates_per_epoch,
            seconds=float(np.sum(seconds)),
            exchanges=int(last.exchanges - first.exchanges),
            bytes_counted=(last.bytes_sent - first.bytes_sent).tolist(),
            bytes_sent=np.sum(sent, axis=0).tolist(),
            bytes_framed=None if job.rate == UNLIMITED else np.sum(framed, axis=0).tolist(),
            samples=self._samples,
            reached=self._reached,
            provenance=surroundings(setup.program.placement)
            | {"began": self._began, "cpus": os.cpu_count(), "load": os.getloadavg()[1]},
        )


def _counters() -> np.ndarray:
    """Bytes sent so far: by the kernel's counter of the device, and by that of its queue.

    The kernel hands its devices packets of up to 64 KiB, with one header each; the queue counts them as
    the packets that they become on a cable, with all their headers. An unlimited link has no queue.
    """
    sent = int(Path(f"/sys/class/net/{DEVICE}/statistics/tx_bytes").read_text())
    show = ["tc", "-statistics", "-json", "qdisc", "show", "dev", DEVICE]
    queues = json.loads(subprocess.run(show, check=True, capture_output=True).stdout)
    return np.array([sent, queues[0].get("bytes", 0)])


def _part(job: Job, config: Config, setup: Setup) -> int:
    """How many updates make a part, so that a measurement has some."""
    state = jax.eval_shape(setup.program.init, setup.key)
    replica = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state.params)
    rounds = training.draw_rounds(setup.draw, setup.key, 1, 1_000)
    sent = run.sent(config, rounds, replica).bytes_sent.mean() / 1_000
    update = _UPDATE + 8 * sent / bits_per_second(job.rate)
    longest = _LONGEST_UNLIMITED if job.rate == UNLIMITED else _LONGEST_PART
    most = min(longest, setup.updates_per_epoch)
    return min(max(int(job.seconds / _PARTS / update), 1), most)


if __name__ == "__main__":
    main()
