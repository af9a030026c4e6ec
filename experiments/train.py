"""Trains a model on several workers with one protocol: `python -m experiments.train --help`."""

import contextlib
import dataclasses
import math
import shlex

import tyro
from rich.console import Console

from experiments import data, faults, journal, memory, run
from experiments.cli import make_console, make_cpu_devices, new_path, reported
from experiments.config import NOT_OF_THE_RESULT, Config, flag
from experiments.console import EpochProgress, result_table
from experiments.faults import Diverged
from experiments.files import only_one_process
from experiments.interrupts import Interrupted, Interrupts
from experiments.journal import Journal
from experiments.profiling import profile
from experiments.run import Progress, Result
from experiments.run_directory import RunDirectory, require_free

_PROGRAM = "python -m experiments.train"


def main() -> None:
    """Runs the command line.

    It exits with 2 on bad input, with 1 where a worker turned NaN, with 130 or 143 on an interrupt.
    """
    console = make_console()
    config = tyro.cli(Config, prog=_PROGRAM)
    memory.return_large_blocks()
    with contextlib.ExitStack() as held:
        with reported(ValueError, OSError):
            if config.resume is not None:
                config = resumed(config)
            config = config.checked()
            out = config.resume or config.out or new_path(f"{config.dataset}-{config.protocol}")
            if config.resume is None:
                require_free(out)
            if config.backend in ("pmap", "shard_map"):
                make_cpu_devices(config.workers)
            setup = run.set_up(config, data.load(config.dataset, config.data_dir))
            held.enter_context(only_one_process(out))
            directory = RunDirectory(out)
            if config.resume is None:
                directory.make()
            course, progress = begin(setup, directory, console)
            if config.profile is not None:
                profile(setup, config.profile)
        with reported(OSError, kept=out), Interrupts(console, "this epoch") as interrupts:
            result = train(course, progress, directory, console, interrupts)
    console.print(result_table({config.protocol: result}))
    if not math.isfinite(result.consensus_distance):
        console.print("training diverged: a replica holds NaN or infinity")
    console.print(
        f"{result.updates} updates, {result.updates_per_second:.1f} a second; see {out}", soft_wrap=True
    )


def resumed(given: Config) -> Config:
    """The settings of the run that goes on, with those of `given` that may differ.

    Raises:
      ValueError: there is no run, it has finished, or another setting was given; it names it.
    """
    assert given.resume is not None
    directory = RunDirectory(given.resume)
    before = dataclasses.replace(directory.read_config(), resume=given.resume)
    # Parsed once more, so that what was not given is as in the run.
    config = tyro.cli(Config, prog=_PROGRAM, default=before)
    for name in sorted({*before.settings(), "out"} - {"epochs"}):
        if getattr(config, name) != getattr(before, name):
            raise ValueError(
                f"{flag(name)} is {getattr(config, name)}, but {getattr(before, name)} in the run in "
                f"{given.resume}: beside --resume, there may be --epochs, "
                f"{', '.join(map(flag, sorted(NOT_OF_THE_RESULT - {'out', 'resume'})))}"
            )
    if config.epochs < before.epochs:
        raise ValueError(
            f"--epochs is {config.epochs}, but {before.epochs} in the run in {given.resume}: it can "
            f"only be made longer"
        )
    if directory.has_result and config.epochs == before.epochs:
        raise ValueError(
            f"the run in {given.resume} has finished; give it more --epochs than {before.epochs} to "
            f"have it go on"
        )
    return config


def begin(setup: run.Setup, directory: RunDirectory, console: Console) -> tuple[Journal, Progress]:
    """A run from its last checkpoint in the directory, or from the start, and its files brought there.

    Raises:
      ValueError: a checkpoint is of other settings.
      OSError: a file cannot be written.
    """
    course = Journal(setup, directory.checkpoints, keeps_best=True)
    (progress,) = journal.begin([course], lambda text: console.print(text, soft_wrap=True))
    directory.delete_result()
    directory.write_config(setup.config, course.provenance)
    directory.write_metrics(course.metrics)
    return course, progress


def train(
    course: Journal,
    progress: Progress,
    directory: RunDirectory,
    console: Console,
    interrupts: Interrupts | None = None,
) -> Result:
    """Trains to the last epoch, with progress shown and the run's files written.

    Raises:
      Interrupted: a signal came; the run has been saved.
      Diverged: a worker turned NaN or infinite, and --on-nan is stop.
      OSError: a file cannot be written.
    """
    setup, config = course.setup, course.setup.config
    how_to_go_on = f"to go on: {_PROGRAM} --resume {shlex.quote(str(directory.path))}"
    num_faults = len(course.faults)

    def say(text: str) -> None:
        console.print(text, soft_wrap=True)

    with EpochProgress(console, config.protocol, config.epochs) as shown:
        try:
            for progress, metrics in faults.train(course, progress, say):  # noqa: B020
                if metrics is not None:
                    directory.append_metrics(metrics)
                course.note(metrics)
                is_last = progress.epoch == config.epochs
                received = None if is_last or interrupts is None else interrupts.received
                every = config.checkpoint_every
                is_due = every and (is_last or progress.epoch % every == 0)
                # No replay goes back behind an epoch in which a worker was isolated or restarted.
                if is_due or received or len(course.faults) > num_faults:
                    course.save(progress)
                    num_faults = len(course.faults)
                shown.update(progress, progress.epoch * setup.updates_per_epoch, metrics)
                if received:
                    raise Interrupted(received, how_to_go_on)
        except Diverged as diverged:
            raise Diverged(f"{diverged}; {how_to_go_on} with another --on-nan") from None
        except OSError as error:
            raise OSError(f"{error}; {how_to_go_on}") from error
    for worker, update in progress.isolated.items():
        say(f"worker {worker} is isolated since update {update}")
    result = run.result(setup, progress)
    directory.write_result(result)
    return result


if __name__ == "__main__":
    main()
