"""One worker of `experiments.network`: trains behind its link, and measures.

Run as `python -m experiments.network_worker JOB PROCESS`, with JOB the fields of `Job` in JSON.
"""

import dataclasses
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments import data, link_records, memory, numerics, run
from experiments.cli import make_cpu_devices, reported
from experiments.config import Config
from experiments.data import Examples
from experiments.link_records import LinkRecord
from experiments.namespaces import DEVICE, UNLIMITED, address, bits_per_second
from experiments.processes import Processes, is_first, joined
from experiments.program import Programs
from experiments.protocols import PROTOCOLS
from experiments.provenance import surroundings
from experiments.run import Progress, Setup
from gossip_jax import training

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
        with joined(processes, numerics.here()):
            dataset = data.load(job.dataset, Path(job.data_dir) if job.data_dir else None)
            programs = Programs(dataset)
            for path, settings in job.runs.items():
                config = Config(**settings, epochs=_ENDLESS, validate_every=_ENDLESS).checked()
                record = measure(job, config, run.set_up(config, dataset, programs))
                if is_first():
                    link_records.write(Path(path), record)
                    print(f"{Path(path).stem}: {record.updates_per_second:.3g} updates/s", flush=True)


def measure(job: Job, config: Config, setup: Setup) -> LinkRecord:
    """Trains until the time is over or, at an unlimited rate, the accuracy is reached."""
    part = _part(job, config, setup)
    few = Examples(*(leaf[:_VALIDATION] for leaf in setup.validation))
    setup = setup._replace(updates_per_epoch=part, validation=few)
    limit = job.longest if job.rate == UNLIMITED else job.seconds
    began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    measured, samples, reached, total = [], [], None, 0.0
    first = progress = None
    for progress, seconds, sent, framed in _parts(setup):
        total += seconds
        if first is None:
            first = progress
        else:
            measured.append((seconds, sent, framed))
        accuracy = float(run.accuracy(setup, progress.state, setup.validation).mean())
        samples.append([progress.epoch * part, total, accuracy])
        if reached is None and accuracy >= job.accuracy:
            reached = samples[-1][:2]
        # Over a limited link always as long, whatever is reached: what is measured there is the speed.
        if measured and (total >= limit or (reached and job.rate == UNLIMITED)):
            break
    assert first is not None
    assert progress is not None
    seconds, sent, framed = (np.array(values) for values in zip(*measured, strict=True))
    return LinkRecord(
        settings=link_records.settings(config, job.rate, job.accuracy),
        updates=len(measured) * part,
        seconds=float(seconds.sum()),
        exchanges=int(progress.traffic.exchanges - first.traffic.exchanges),
        bytes_counted=(progress.traffic.bytes_sent - first.traffic.bytes_sent).tolist(),
        bytes_sent=sent.sum(axis=0).tolist(),
        bytes_framed=None if job.rate == UNLIMITED else framed.sum(axis=0).tolist(),
        samples=samples,
        reached=reached,
        provenance=surroundings(setup.program.placement)
        | {"began": began, "cpus": os.cpu_count(), "load": os.getloadavg()[1]},
    )


def _parts(setup: Setup) -> Iterator[tuple[Progress, float, np.ndarray, np.ndarray]]:
    """Trains part by part: seconds of the slowest worker, bytes sent and framed by each, [W]."""
    before = run.start(setup)
    seconds, trained = before.seconds, run.train(setup, before)
    while True:
        counted = _counters()
        progress, _ = next(trained)
        own = np.array([progress.seconds - seconds, *(_counters() - counted)], np.float32)
        seconds = progress.seconds
        every = multihost_utils.process_allgather(own)
        yield progress, float(every[:, 0].max()), every[:, 1], every[:, 2]


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
    sent = PROTOCOLS[config.protocol].traffic(config, rounds, replica).bytes_sent.mean() / 1_000
    update = _UPDATE + 8 * sent / bits_per_second(job.rate)
    longest = _LONGEST_UNLIMITED if job.rate == UNLIMITED else _LONGEST_PART
    most = min(longest, setup.updates_per_epoch)
    return min(max(int(job.seconds / _PARTS / update), 1), most)


if __name__ == "__main__":
    main()
