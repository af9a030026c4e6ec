"""Runs what is missing of many runs: in any order, stopped at any moment, never one twice."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from experiments.common import numerics
from experiments.common.files import exists, only_one_process
from experiments.common.interrupts import Interrupted, Interrupts
from experiments.runs import records
from experiments.runs.checkpoints import Checkpoints
from experiments.runs.console import EpochProgress
from experiments.runs.faults import Diverged, Treatment
from experiments.runs.journal import Journal, begin
from experiments.runs.records import Record
from experiments.runs.saving import Saving
from experiments.tables.rows import Row, Table
from experiments.tasks.data import Dataset
from experiments.training import loop, run
from experiments.training.config import Config, OnNan
from experiments.training.loop import Epoch
from experiments.training.program import Programs
from experiments.training.run import Setup
from gossip_jax.workers import Backend

GO_ON = "the same command goes on from the last epoch"


class Job(NamedTuple):
    """A run that is wanted."""

    label: str  # of its row
    group: str  # of its table
    name: str  # equal for the seeds of a row
    config: Config

    def record_path(self, results: Path) -> Path:
        """Where its record is, once it has finished."""
        return records.path_of(results, self.group, self.name, self.config.seed)

    def checkpoints(self, results: Path) -> Checkpoints:
        """Finds its checkpoints, which are there until it has finished."""
        return Checkpoints(
            results / "checkpoints" / self.group / self.name / f"seed-{self.config.seed}"
        )

    def last_epoch(self, results: Path) -> int:
        """Finds the epoch of its last checkpoint; 0 without one."""
        return max(self.checkpoints(results).epochs(), default=0)

    def record(self, results: Path) -> Record | None:
        """Its record; None where it has not finished.

        Raises:
          ValueError: the file that should be its record is not.
          OSError: it cannot be read.
        """
        path = self.record_path(results)
        settings = self.config.settings() | numerics.unusual()
        return records.read_expected(path, settings) if exists(path) else None


def jobs_of(
    table: Table,
    rows: Sequence[Row],
    seeds: Sequence[int],
    epochs: int | None = None,
    train_examples: int | None = None,
    backend: Backend = "auto",
    data_dir: Path | None = None,
    on_nan: OnNan | None = None,
) -> list[Job]:
    """The runs of these rows with these seeds: row by row.

    Raises:
      ValueError: the settings of a row are out of range, or its workers cannot share the examples.
    """
    for row in rows:
        if train_examples is not None and train_examples % row.config.workers:
            raise ValueError(
                f"table: --train-examples are divided among the {row.config.workers} workers of "
                f"{row.label}, so there must be a multiple of that; got {train_examples}"
            )
    configs = [(row, row.run(seed, epochs, train_examples, on_nan)) for row in rows for seed in seeds]
    return [
        Job(
            row.label,
            table.group,
            row.name(config),
            dataclasses.replace(config, backend=backend, data_dir=data_dir),
        )
        for row, config in configs
    ]


def distinct(jobs: Iterable[Job]) -> list[Job]:
    """The jobs, each once: tables of one group share their runs.

    Raises:
      ValueError: two of one name have other settings, so that one would take the other's record.
    """
    found: dict[tuple[str, str, int], Job] = {}
    for job in jobs:
        first = found.setdefault((job.group, job.name, job.config.seed), job)
        if first.config.settings() != job.config.settings():
            raise ValueError(
                f"the rows {first.label} and {job.label} of {job.group} are both called {job.name}, "
                f"but their settings differ: what they differ in must be set in the row"
            )
    return list(found.values())


def run_missing(
    jobs: Sequence[Job],
    results: Path,
    console: Console,
    together: int = 1,
    deadline: float = float("inf"),
    interrupts: Interrupts | None = None,
) -> bool:
    """Runs those jobs that have no record yet, each from its last checkpoint.

    Args:
      jobs: the runs that are wanted, the most urgent first.
      results: the directory of records and checkpoints.
      console: to show progress on.
      together: how many seeds of a row to train in one program.
      deadline: on `time.monotonic`'s clock: no epoch begins that would not be over by then, as far
        as the one before tells.
      interrupts: after an epoch in which a signal came, no other begins.

    Returns:
      Whether all have finished.

    Raises:
      ValueError: a record is damaged, it or a checkpoint is of other settings, `distinct` refuses the
        jobs, the data cannot be read, or another process is at work here.
      OSError: a file cannot be read, or not be written. What finished before is kept.
      Interrupted: a signal came, and was not too late to stop anything.
      Diverged: workers of some runs turned NaN, and --on-nan is stop; all other runs have finished.
    """
    jobs, diverged = distinct(jobs), list[str]()
    datasets: dict[str, tuple[Dataset, Programs]] = {}
    with only_one_process(results):
        missing = [job for job in jobs if job.record(results) is None]
        if len(missing) < len(jobs):
            console.print(f"{len(jobs) - len(missing)} of {len(jobs)} runs are there already")
        for job in set(jobs) - set(missing):
            job.checkpoints(results).delete()  # left where a kill came right after the record
        longest: dict[str, float] = {}  # seconds of an epoch, by dataset
        warned = set[str]()  # rows
        is_time_up = False
        for group in _groups(missing, results, together):
            config = group[0].config
            if time.monotonic() + longest.get(config.dataset, 0.0) >= deadline:
                return False
            if config.dataset not in datasets:
                console.print(f"reading {config.dataset}")
                dataset = config.task.load(config.data_dir)
                datasets[config.dataset] = dataset, Programs(dataset)

            def end(seconds: float, group: Sequence[Job] = group) -> bool:
                """After an epoch of the group: whether there is no time for another one."""
                nonlocal is_time_up
                dataset = group[0].config.dataset
                longest[dataset] = max(seconds, longest.get(dataset, 0.0))
                is_over = group[0].record_path(results).exists()
                is_last = is_over and group[-1] is missing[-1]
                if interrupts is not None and interrupts.received is not None and not is_last:
                    raise Interrupted(interrupts.received, GO_ON)
                is_time_up = not is_over and time.monotonic() + seconds > deadline
                return is_time_up

            while group:
                setups = [run.set_up(job.config, *datasets[config.dataset]) for job in group]
                if (warning := run.warning(setups[0])) and group[0].name not in warned:
                    warned.add(group[0].name)
                    console.print(f"warning: {group[0].label}: {warning}", soft_wrap=True)
                try:
                    _train(group, setups, results, console, end)
                    break
                except Diverged as error:
                    # The others go on without it, from their last checkpoint.
                    seed = error.journal.setup.config.seed if error.journal else None
                    diverged.append(f"{group[0].label} seed {seed}")
                    group = [job for job in group if job.config.seed != seed]
            if is_time_up:
                return False
    if diverged:
        raise Diverged(
            f"{', '.join(diverged)} diverged, and has no record; the same command with another "
            f"--on-nan goes on with it"
        )
    return True


def _train(
    group: Sequence[Job],
    setups: Sequence[Setup],
    results: Path,
    console: Console,
    end: Callable[[float], bool],
) -> None:
    """Trains jobs that differ in their seed until all have a record, or `end` says so.

    `end` is told the seconds that an epoch took, all told.
    """
    journals = [
        Journal(setup, job.checkpoints(results)) for job, setup in zip(group, setups, strict=True)
    ]
    progress = begin(journals, console.print)
    began = time.monotonic()

    def record(after: Sequence[Epoch]) -> None:
        if after[0].progress.epoch == group[0].config.epochs:
            for job, journal, epoch in zip(group, journals, after, strict=True):
                records.write(job.record_path(results), journal.record(epoch.progress))
                journal.checkpoints.delete()

    def end_after(_: Sequence[Epoch]) -> bool:
        nonlocal began
        seconds, began = time.monotonic() - began, time.monotonic()
        return end(seconds)

    with EpochProgress(console, _label(group), setups, progress[0].epoch) as shown:
        loop.train(
            setups,
            progress,
            (Saving(journals, keeps_last=False), record, shown.update, end_after),
            Treatment(journals, lambda text: console.print(text, soft_wrap=True)),
            shown.enter,
        )


def _label(group: Sequence[Job]) -> str:
    seeds = [job.config.seed for job in group]
    return f"{group[0].label} seed {seeds[0]}" + (f" to {seeds[-1]}" if len(seeds) > 1 else "")


def _groups(jobs: Sequence[Job], results: Path, together: int) -> Iterator[list[Job]]:
    """Jobs that follow each other and differ only in their seed, at most so many at a time.

    One that has come further than the others, or less far, goes on by itself: none starts anew.
    """
    group: list[Job] = []
    for job in jobs:
        if group and not (
            len(group) < together
            and (job.group, job.name) == (group[0].group, group[0].name)
            and abs(job.last_epoch(results) - group[0].last_epoch(results)) <= 1
        ):
            yield group
            group = []
        group.append(job)
    if group:
        yield group
