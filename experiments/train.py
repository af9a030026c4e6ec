"""Trains a model on several workers with one protocol: `python -m experiments.train --help`."""

import contextlib
import dataclasses
import math
import shlex
from collections.abc import Sequence
from pathlib import Path

import tyro
from rich.console import Console

from experiments.cluster.processes import (
    DisagreementError,
    Processes,
    from_first,
    is_first,
    joined,
    most,
    on_a_loss,
    require_one_cpu_device,
)
from experiments.common import memory, numerics
from experiments.common.cache import keep_programs
from experiments.common.cli import flag, make_console, make_cpu_devices, new_path, reported
from experiments.common.files import only_one_process
from experiments.common.interrupts import Interrupts
from experiments.runs import journal
from experiments.runs.console import EpochProgress, result_grid
from experiments.runs.faults import Diverged, Treatment
from experiments.runs.journal import Journal
from experiments.runs.profiling import profile
from experiments.runs.provenance import versions
from experiments.runs.run_directory import RunDirectory, require_free
from experiments.runs.saving import Saving
from experiments.training import loop, run
from experiments.training.config import Config, names_of, names_that_may_change
from experiments.training.loop import Epoch
from experiments.training.results import Result
from experiments.training.run import Progress

_PROGRAM = "python -m experiments.train"


@dataclasses.dataclass(frozen=True)
class Options:
    """Train a model on several workers, with one of the protocols.

    The defaults are the thesis's settings for MNIST (arXiv:1812.02407), on a dataset that needs no
    download.
    """

    run: tyro.conf.OmitArgPrefixes[Config]
    processes: tyro.conf.OmitArgPrefixes[Processes]


def main() -> None:
    """Runs the command line.

    It exits with 2 on bad input, with 1 where a worker turned NaN, with 130 or 143 on an interrupt, and
    with `lifeline.PEER_LOST` where this is one of several processes and another is lost.
    """
    make_console()  # messages may hold any path
    options = tyro.cli(Options, prog=_PROGRAM)
    memory.return_large_blocks()
    with contextlib.ExitStack() as together:
        with reported(ValueError, OSError):
            config, processes = options.run, options.processes.checked()
            if config.resume is not None:
                config = resumed(config)
            config = config.checked()
            if config.cache:
                keep_programs()
            share = processes.share_of(config.workers)
            if config.backend in ("pmap", "shard_map") or processes.are_several:
                make_cpu_devices(1 if processes.are_several else share)
            alike = config.settings() | numerics.here() | {"backend": config.backend}
            alike |= {"versions": versions()}
            together.enter_context(joined(processes, alike))
        run_and_show(config)


def run_and_show(config: Config) -> None:
    """The whole run. Of several processes, the first writes its files and prints."""
    console = make_console(quiet=not is_first())
    with contextlib.ExitStack() as held:
        with reported(ValueError, OSError):
            require_one_cpu_device()
            out = config.resume or config.out or new_path(f"{config.dataset}-{config.protocol}")
            out = Path(from_first(str(out), "the data"))
            if config.resume is None and is_first():
                require_free(out)
            console.print(f"reading {config.dataset}")
            setup = run.set_up(config, config.task.load(config.data_dir))
            if warning := run.warning(setup):
                console.print(f"warning: {warning}", soft_wrap=True)
            if is_first():
                held.enter_context(only_one_process(out))
            directory = RunDirectory(out, writes=is_first())
            if config.resume is None:
                directory.make()
            course, progress = begin(setup, directory, console)
            on_a_loss(how_to_go_on(out))
            if config.profile is not None:
                profile(setup, config.profile)
        with (
            reported(OSError, DisagreementError, kept=out),
            Interrupts(console, "this epoch", how_to_go_on(out)) as interrupts,
        ):
            result = train(course, progress, directory, console, interrupts)
    console.print(result_grid({config.protocol: result}, config.task.metric).rich(console.width))
    if not math.isfinite(result.consensus_distance):
        console.print("training diverged: a replica holds NaN or infinity")
    console.print(
        f"{result.updates} updates, {result.updates_per_second:.1f} a second; see {out}", soft_wrap=True
    )


def how_to_go_on(out: Path) -> str:
    """The command by which a run that was stopped goes on."""
    return f"to go on: {_PROGRAM} --resume {shlex.quote(str(out))}"


def resumed(given: Config) -> Config:
    """The settings of the run that goes on, with those of `given` that may differ.

    Raises:
      ValueError: there is no run, it has finished, or another setting was given; it names it.
    """
    assert given.resume is not None
    directory = RunDirectory(given.resume)
    before = dataclasses.replace(directory.read_config(), resume=given.resume)
    directory.require_same_numerics()
    # Parsed once more, so that what was not given is as in the run.
    config = tyro.cli(Options, prog=_PROGRAM, default=Options(before, Processes())).run
    may_change = names_that_may_change()
    for name in sorted({*names_of("result"), "out"} - {*may_change}):
        if getattr(config, name) != getattr(before, name):
            raise ValueError(
                f"{flag(name)} is {getattr(config, name)}, but {getattr(before, name)} in the run in "
                f"{given.resume}: beside --resume, there may be "
                f"{', '.join(map(flag, sorted(may_change)))}"
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
    """A run from its last checkpoint in the directory, or from the start.

    Raises:
      ValueError: a checkpoint is of other settings, is of a longer run, or has gone.
      OSError: a file cannot be read, or not be written.
    """
    is_new = not directory.has_config
    course = Journal(setup, directory.checkpoints, keeps_best=True)
    (progress,) = journal.begin([course], lambda text: console.print(text, soft_wrap=True))
    epochs = [most(number, "the first epoch") for number in (progress.epoch, -progress.epoch)]
    if epochs[0] != -epochs[1]:
        raise ValueError(
            f"the processes see other checkpoints in {directory.path}: it must be the same directory, "
            f"on a file system that they share"
        )
    if progress.epoch > setup.config.epochs:
        raise ValueError(
            f"the run in {directory.path} has come to epoch {progress.epoch}: --epochs must be that or "
            f"more; got {setup.config.epochs}"
        )
    if is_new:
        directory.begin(setup.config, course.provenance)
    else:
        directory.go_on()
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
    go_on = how_to_go_on(directory.path)
    saving = Saving(
        [course],
        config.checkpoint_every,
        interrupts=interrupts,
        then=lambda: directory.catch_up(config, course.provenance, course.metrics),
    )

    def say(text: str) -> None:
        console.print(text, soft_wrap=True)

    def append(after: Sequence[Epoch]) -> None:
        if after[0].metrics is not None:
            directory.append_metrics(after[0].metrics)

    with EpochProgress(console, config.protocol, [setup], progress.epoch) as shown:
        try:
            (progress,) = loop.train(
                [setup],
                [progress],
                (append, saving, shown.update, lambda _: saving.stop(go_on)),
                Treatment([course], say),
                shown.enter,
            )
        except Diverged as diverged:
            raise Diverged(f"{diverged}; {go_on} with another --on-nan") from None
        except OSError as error:
            raise OSError(f"{error}; {go_on}") from error
    for worker, update in progress.isolated.items():
        say(f"worker {worker} is isolated since update {update}")
    record = course.record(progress)
    directory.catch_up(config, course.provenance, course.metrics)
    directory.write_result(record)
    return record.result


if __name__ == "__main__":
    main()
