"""Runs what is missing of many runs: in any order, stopped at any moment, never one twice."""

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from experiments import data, numerics, records, run
from experiments.checkpoints import Checkpoints
from experiments.config import Config
from experiments.console import EpochProgress
from experiments.data import Dataset
from experiments.files import exists, only_one_process
from experiments.interrupts import Interrupted, Interrupts
from experiments.journal import Journal, begin
from experiments.program import Programs
from experiments.records import Record
from experiments.rows import Row, Table
from experiments.run import EpochMetrics, Progress, Setup


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
        """Its checkpoints, as long as it has not."""
        return Checkpoints(
            results / "checkpoints" / self.group / self.name / f"seed-{self.config.seed}"
        )

    def last_epoch(self, results: Path) -> int:
        """Of its last checkpoint; 0 without one."""
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
    backend: str = "auto",
    data_dir: Path | None = None,
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
    configs = [(row, row.run(seed, epochs, train_examples)) for row in rows for seed in seeds]
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
    """
    jobs = distinct(jobs)
    datasets: dict[str, tuple[Dataset, Programs]] = {}
    with only_one_process(results):
        missing = [job for job in jobs if job.record(results) is None]
        if len(missing) < len(jobs):
            console.print(f"{len(jobs) - len(missing)} of {len(jobs)} runs are there already")
        for job in set(jobs) - set(missing):
            job.checkpoints(results).delete()  # left where a kill came right after the record
        longest: dict[str, float] = {}  # seconds of an epoch, by dataset
        for group in _groups(missing, results, together):
            config = group[0].config
            if time.monotonic() + longest.get(config.dataset, 0.0) >= deadline:
                return False
            if config.dataset not in datasets:
                dataset = data.load(config.dataset, config.data_dir)
                datasets[config.dataset] = dataset, Programs(dataset)
            setups = [run.set_up(job.config, *datasets[config.dataset]) for job in group]
            for seconds in _epochs(group, setups, results, console):
                longest[config.dataset] = max(seconds, longest.get(config.dataset, 0.0))
                is_over = group[0].record_path(results).exists()
                if interrupts is not None and interrupts.received is not None:
                    if is_over and group[-1] is missing[-1]:
                        return True
                    raise Interrupted(
                        interrupts.received, "the same command goes on from the last epoch"
                    )
                if not is_over and time.monotonic() + seconds > deadline:
                    return False
    return True


class _Run:
    """A run at work: its progress, and what its record will say."""

    def __init__(self, job: Job, setup: Setup, results: Path):
        self.journal = Journal(setup, job.checkpoints(results))
        self._record_path = job.record_path(results)

    def keep(self, progress: Progress, metrics: EpochMetrics | None) -> None:
        """Writes a checkpoint, or, after the last epoch, the record."""
        journal = self.journal
        journal.note(metrics)
        if progress.epoch < journal.setup.config.epochs:
            journal.save(progress)
        else:
            result = run.result(journal.setup, progress)
            settings = journal.setup.config.settings() | numerics.unusual()
            records.write(
                self._record_path,
                Record(settings, result, tuple(journal.metrics), journal.provenance),
            )
            journal.checkpoints.delete()


def _epochs(
    group: Sequence[Job], setups: Sequence[Setup], results: Path, console: Console
) -> Iterator[float]:
    """Trains jobs that differ in their seed to the end; yields the seconds of each epoch, all told."""
    runs = [_Run(job, setup, results) for job, setup in zip(group, setups, strict=True)]
    progress = begin([one.journal for one in runs], console.print)
    seeds = [job.config.seed for job in group]
    label = f"{group[0].label} seed {seeds[0]}" + (f" to {seeds[-1]}" if len(seeds) > 1 else "")
    with EpochProgress(console, label, group[0].config.epochs, len(runs)) as shown:
        began = time.monotonic()
        for after_epoch in run.train_together(setups, progress):
            for one, (progress_of_one, metrics) in zip(runs, after_epoch, strict=True):
                one.keep(progress_of_one, metrics)
            last, metrics = after_epoch[0]
            shown.update(last, last.epoch * setups[0].updates_per_epoch, metrics)
            yield time.monotonic() - began
            began = time.monotonic()


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
