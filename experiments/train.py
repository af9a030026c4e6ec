"""Trains a model on several workers with one protocol: `python -m experiments.train --help`."""

import contextlib
import dataclasses
import math

import tyro
from rich.console import Console

from experiments import data, memory, run
from experiments.cli import make_console, make_cpu_devices, new_path, reported
from experiments.config import Config
from experiments.console import EpochProgress, result_table
from experiments.processes import Processes, is_first, joined
from experiments.provenance import versions
from experiments.run_directory import RunDirectory, require_free


@dataclasses.dataclass(frozen=True)
class Options:
    """Train a model on several workers, with one of the protocols.

    The defaults are the thesis's settings for MNIST (arXiv:1812.02407), on a dataset that needs no
    download.
    """

    run: tyro.conf.OmitArgPrefixes[Config]
    processes: tyro.conf.OmitArgPrefixes[Processes]


def main() -> None:
    """Runs the command line: exits with 2 on bad input, with 130 on an interrupt.

    One of several processes exits with `lifeline.PEER_LOST` where another is lost.
    """
    options = tyro.cli(Options, prog="python -m experiments.train")
    make_console()  # messages may hold any path
    memory.return_large_blocks()
    with contextlib.ExitStack() as together:
        with reported(ValueError, OSError):
            config, processes = options.run.checked(), options.processes.checked()
            if config.backend in ("pmap", "shard_map") or processes.are_several:
                make_cpu_devices(processes.share_of(config.workers))
            alike = config.settings() | {"backend": config.backend, "versions": versions()}
            together.enter_context(joined(processes, alike))
        run_and_show(config)


def run_and_show(config: Config) -> None:
    """The whole run. Of several processes, the first writes its files and prints."""
    console = make_console(quiet=not is_first())
    with reported(ValueError, OSError):
        out = config.out or new_path(f"{config.dataset}-{config.protocol}")
        if is_first():
            require_free(out)
        setup = run.set_up(config, data.load(config.dataset, config.data_dir))
        directory = RunDirectory(out) if is_first() else None
        if directory is not None:
            directory.write_config(setup)
    with reported(OSError, kept=out):
        result = train(setup, directory, console)
    console.print(result_table({config.protocol: result}))
    if not math.isfinite(result.consensus_distance):
        console.print("training diverged: a replica holds NaN or infinity")
    console.print(
        f"{result.updates} updates, {result.updates_per_second:.1f} a second; see {out}", soft_wrap=True
    )


def train(setup: run.Setup, directory: RunDirectory | None, console: Console) -> run.Result:
    """Trains to the last epoch, with progress shown and, where there is a directory, files written."""
    with EpochProgress(console, setup.config.protocol, setup.config.epochs) as shown:
        start = progress = run.start(setup)
        for progress, metrics in run.train(setup, start):
            if metrics is not None and directory is not None:
                directory.append_metrics(metrics)
            shown.update(progress, progress.epoch * setup.updates_per_epoch, metrics)
    result = run.result(setup, progress)
    if directory is not None:
        directory.write_result(result)
    return result


if __name__ == "__main__":
    main()
