"""Trains with each worker behind a slow link: `python -m experiments.network --help`."""

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import tyro

from experiments import launch
from experiments.common.cli import make_console, reported
from experiments.common.files import exists
from experiments.links import records as link_records
from experiments.links.namespaces import bits_per_second, inside, network, require_tools
from experiments.links.worker import Job
from experiments.report import links as link_report
from experiments.tasks.classification import ACCURACY
from experiments.tasks.registry import TASKS
from experiments.training.config import Config, DatasetName, ProtocolName
from experiments.training.protocols import depend_on_p
from gossip_jax import checks

_PORT = 29_400  # of the coordinator: nobody else is in its namespace


@dataclasses.dataclass(frozen=True)
class Options:
    """Train with each worker in a network namespace of its own, behind a link of a given rate.

    It measures updates a second, bytes sent, and the time to an accuracy. Needs root, and Debian's
    iproute2. It can be stopped at any moment: the same command goes on with what is missing.
    """

    rate: tuple[str, ...] = ("unlimited", "1gbit", "100mbit", "10mbit")
    """Of each link, in each direction: a number with kbit, mbit or gbit, or "unlimited"."""

    protocols: tuple[ProtocolName, ...] = ("no_communication", "all_reduce", "elastic_gossip")
    """What to compare."""

    p: tuple[float, ...] = (1 / 8, 1 / 32, 1 / 128)
    """Communication probabilities, with each of which those protocols run whose rounds depend on it."""

    workers: int = 4
    """W, each a process."""

    dataset: DatasetName = "mnist"
    """What to learn."""

    data_dir: Path | None = None
    """Where the prepared datasets of tensorflow-datasets are, as for experiments.train."""

    width: int = Config.width
    """Units in each of the MLP's three hidden layers."""

    batch_size: int = Config.batch_size
    """Examples in an update, over all workers."""

    accuracy: float = 0.9
    """The validation accuracy, mean over workers, to which the time is taken."""

    seconds: float = 20.0
    """How long to train with each protocol at a limited rate."""

    longest: float = 600.0
    """The same at an unlimited rate, where the accuracy ends a run."""

    out: Path = Path("results")
    """The directory of the results: records go to network/ in it."""

    def check(self) -> None:
        """Raises ValueError where one is out of range."""
        checks.at_least_one("network", "--workers", self.workers)
        if not 2 <= self.workers <= 64:
            raise ValueError(f"network: --workers must be 2 to 64; got {self.workers}")
        if ACCURACY not in TASKS[self.dataset].metrics:
            raise ValueError(f"network: --dataset must be scored by accuracy; got {self.dataset}")
        if not 0 < self.accuracy < 1:
            raise ValueError(f"network: --accuracy must be between 0 and 1; got {self.accuracy}")
        for name in ("seconds", "longest"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"network: --{name} must be positive; got {getattr(self, name)}")
        for name in ("rate", "protocols", "p"):
            if not getattr(self, name):
                raise ValueError(f"network: --{name} names nothing")
        for rate in self.rate:
            bits_per_second(rate)

    def runs(self) -> Iterator[dict[str, Any]]:
        """The settings of the runs, at any rate, as `Config` takes them."""
        for protocol in self.protocols:
            settings = {
                "dataset": self.dataset,
                "protocol": protocol,
                "workers": self.workers,
                "width": self.width,
                "batch_size": self.batch_size,
                "backend": "shard_map",
            }
            for p in self.p if depend_on_p(Config(**settings).checked()) else (None,):
                yield settings | {"p": p}

    def path(self, config: Config, rate: str) -> Path:
        """Says where a run's record is."""
        p = config.p if depend_on_p(config) else None
        name = link_records.name_of(config.protocol, p, config.workers, config.width, rate)
        return self.out.absolute() / "network" / f"{name}.json"


def main() -> None:
    """Runs the command line: exits with 2 on bad input, with 130 or 143 on an interrupt."""
    options = tyro.cli(Options, prog="python -m experiments.network")
    console = make_console()
    signal.signal(signal.SIGTERM, _terminate)  # through the end of `network`, which clears up
    with reported(ValueError, OSError, kept=options.out):
        options.check()
        require_tools()
        missing = {rate: _missing(options, rate) for rate in options.rate}
        for rate, runs in missing.items():
            if runs:
                console.print(f"{len(runs)} runs over links of {rate}")
                code = _run(options, rate, runs)
                if code:
                    raise SystemExit(code)
        records = link_records.read_all(options.out)
        for group in link_report.groups(records):
            console.print(link_report.measured(group).rich(console.width))
    console.print(f"{len(records)} records in {options.out / 'network'}", soft_wrap=True)
    console.print(f"next: python -m experiments.report --results {options.out}", soft_wrap=True)


def _missing(options: Options, rate: str) -> dict[str, dict[str, Any]]:
    """Settings of the runs without a record, by the path of that; ValueError where one is of others."""
    missing = {}
    for settings in options.runs():
        config = Config(**settings).checked()
        path = options.path(config, rate)
        if exists(path):
            link_records.read_expected(path, link_records.settings(config, rate, options.accuracy))
        else:
            missing[str(path)] = settings
    return missing


def _run(options: Options, rate: str, runs: dict[str, dict[str, Any]]) -> int:
    """Has all workers do the runs; their exit code."""
    job = Job(
        runs=runs,
        dataset=options.dataset,
        rate=rate,
        workers=options.workers,
        port=_PORT,
        accuracy=options.accuracy,
        seconds=options.seconds,
        longest=options.longest,
        data_dir=str(options.data_dir.absolute()) if options.data_dir else None,
    )
    worker = [sys.executable, "-m", "experiments.links.worker", json.dumps(dataclasses.asdict(job))]
    with network(options.workers, rate) as namespaces:
        commands = [inside(name, [*worker, str(i)]) for i, name in enumerate(namespaces)]
        return launch.run(commands, os.environ | {"JAX_PLATFORMS": "cpu"})


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
