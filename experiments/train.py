"""Trains a model on several workers with one protocol: `python -m experiments.train --help`."""

import math

import tyro
from rich.console import Console

from experiments import data, memory, run
from experiments.cli import make_console, make_cpu_devices, new_path, reported
from experiments.config import Config
from experiments.console import EpochProgress, result_table
from experiments.profiling import profile
from experiments.run_directory import RunDirectory, require_free


def main() -> None:
    """Runs the command line: exits with 2 on bad input, with 130 on an interrupt."""
    config = tyro.cli(Config, prog="python -m experiments.train")
    console = make_console()
    memory.return_large_blocks()
    with reported(ValueError, OSError):
        config = config.checked()
        out = config.out or new_path(f"{config.dataset}-{config.protocol}")
        require_free(out)
        if config.backend in ("pmap", "shard_map"):
            make_cpu_devices(config.workers)
        setup = run.set_up(config, data.load(config.dataset, config.data_dir))
        directory = RunDirectory(out)
        directory.write_config(setup)
        if config.profile is not None:
            profile(setup, config.profile)
    with reported(OSError, kept=out):
        result = train(setup, directory, console)
    console.print(result_table({config.protocol: result}))
    if not math.isfinite(result.consensus_distance):
        console.print("training diverged: a replica holds NaN or infinity")
    console.print(
        f"{result.updates} updates, {result.updates_per_second:.1f} a second; see {out}", soft_wrap=True
    )


def train(setup: run.Setup, directory: RunDirectory, console: Console) -> run.Result:
    """Trains from the start to the last epoch, with progress shown and the run's files written."""
    with EpochProgress(console, setup.config.protocol, setup.config.epochs) as shown:
        start = progress = run.start(setup)
        for progress, metrics in run.train(setup, start):
            if metrics is not None:
                directory.append_metrics(metrics)
            shown.update(progress, progress.epoch * setup.updates_per_epoch, metrics)
    result = run.result(setup, progress)
    directory.write_result(result)
    return result


if __name__ == "__main__":
    main()
