"""Runs the rows of a table that have not been run yet: `python -m experiments.table --help`."""

import dataclasses
from typing import Annotated

import tyro

from experiments.common import memory
from experiments.common.cli import make_console, reported
from experiments.common.interrupts import Interrupts
from experiments.report.comparison import show
from experiments.tables import rows, sweep
from experiments.tables.options import SweepOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(SweepOptions):
    """Run what is missing of a table, and keep a record of every run.

    It can be stopped at any moment: the same command goes on from the last epoch. Ctrl-C waits for the
    epoch to end; a second one does not.
    """

    table: Annotated[str, tyro.conf.Positional]
    """The name of a file in experiments/tables, such as mnist_protocols."""

    rows: tuple[str, ...] | None = None
    """Labels of the rows to run; all of the table where not given."""


def main() -> None:
    """Runs the command line: exits with 2 on bad input, with 130 or 143 on an interrupt."""
    options = tyro.cli(Options, prog="python -m experiments.table")
    console = make_console()
    memory.return_large_blocks()
    with reported(ValueError, OSError, kept=options.out):
        options.check()
        table = rows.load(options.table)
        jobs = options.jobs(table, table.select(options.rows), range(options.seeds))
        options.prepare([table])
        with Interrupts(console, "this epoch", sweep.GO_ON) as interrupts:
            sweep.run_missing(jobs, options.out, console, options.seeds_at_once, interrupts=interrupts)
        show(console, options.out, [table])


if __name__ == "__main__":
    main()
