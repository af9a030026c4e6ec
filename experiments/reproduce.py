"""Runs the tables by priority within a time budget: `python -m experiments.reproduce --help`."""

import dataclasses
import time
from collections.abc import Iterator, Sequence

import tyro

from experiments.common import memory
from experiments.common.cli import make_console, reported
from experiments.common.interrupts import Interrupts
from experiments.report.comparison import show
from experiments.tables import rows, sweep
from experiments.tables.options import SweepOptions
from experiments.tables.rows import Table
from experiments.tables.sweep import Job


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(SweepOptions):
    """Run what is missing of all tables, by priority, for so many minutes.

    One seed of every row comes first, in the order of the tables: MNIST's main one, CIFAR-10's, those
    of α and τ. Then come more seeds. The same command goes on from where it stopped; the results of
    several machines can be copied together.
    """

    minutes: float
    """No epoch begins that would not be over by then, as far as one of its dataset was timed before."""

    tables: tuple[str, ...] | None = None
    """Names of files in experiments/tables; all where not given."""

    seeds: int = 5
    """Runs of each row that are wanted in the end, with the seeds 0, 1, ..."""


def main() -> None:
    """Runs the command line: exits with 2 on bad input, with 130 or 143 on an interrupt."""
    options = tyro.cli(Options, prog="python -m experiments.reproduce")
    deadline = time.monotonic() + 60 * options.minutes
    console = make_console()
    memory.return_large_blocks()
    with reported(ValueError, OSError, kept=options.out):
        options.check()
        if not options.minutes > 0:
            raise ValueError(f"reproduce: --minutes must be positive; got {options.minutes}")
        tables = [rows.load(name) for name in options.tables or ()] or rows.load_all()
        jobs = sweep.distinct(by_priority(options, tables))
        options.prepare(tables)
        with Interrupts(console, "this epoch", sweep.GO_ON) as interrupts:
            sweep.run_missing(jobs, options.out, console, options.seeds_at_once, deadline, interrupts)
        show(console, options.out, tables)
        done = sum(job.record_path(options.out).exists() for job in jobs)
    console.print(f"{done} of {len(jobs)} runs are done; see {options.out}", soft_wrap=True)


def by_priority(options: Options, tables: Sequence[Table]) -> Iterator[Job]:
    """All runs that are wanted, the most urgent first."""
    seeds = list(range(1, options.seeds))
    chunks = [seeds[i : i + options.seeds_at_once] for i in range(0, len(seeds), options.seeds_at_once)]
    for chunk in [[0], *chunks]:
        for table in tables:
            yield from options.jobs(table, table.rows, chunk)


if __name__ == "__main__":
    main()
