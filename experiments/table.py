"""Runs the rows of a table that have not been run yet: `python -m experiments.table --help`."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro

from experiments import memory, rows, sweep
from experiments.cli import make_console, make_cpu_devices, reported
from gossip_jax import checks


@dataclasses.dataclass(frozen=True)
class Options:
    """Run what is missing of a table, and keep a record of every run.

    It can be stopped at any moment: the same command goes on from the last epoch.
    """

    table: Annotated[str, tyro.conf.Positional]
    """The name of a file in experiments/tables, such as mnist_protocols."""

    rows: tuple[str, ...] | None = None
    """Labels of the rows to run; all of the table where not given."""

    seeds: int = 1
    """Runs of each row, with the seeds 0, 1, ..."""

    epochs: int | None = None
    """A shorter, or longer, run than the table's; it is kept beside the others, and labelled."""

    train_examples: int | None = None
    """Train on so many examples only; kept beside the others, and labelled."""

    seeds_at_once: int = 1
    """Seeds of a row that train in one program (vmap over seeds). It pays on a GPU, not on a CPU."""

    backend: Literal["auto", "pmap", "vmap", "shard_map"] = "auto"
    """One replica a device (pmap, shard_map), or all on one (vmap). auto takes pmap where there are
    enough devices, and makes CPU devices to that end; else vmap."""

    data_dir: Path | None = None
    """As of experiments.train."""

    out: Path = Path("results")
    """The directory of the results."""


def main() -> None:
    """Runs the command line: exits with 2 on bad input, with 130 on an interrupt."""
    options = tyro.cli(Options, prog="python -m experiments.table")
    console = make_console()
    memory.return_large_blocks()
    with reported(ValueError, OSError, kept=options.out):
        for name in ("seeds", "seeds_at_once"):
            checks.at_least_one("table", "--" + name.replace("_", "-"), getattr(options, name))
        table = rows.load(options.table)
        jobs = sweep.jobs_of(
            table,
            table.select(options.rows),
            range(options.seeds),
            options.epochs,
            options.train_examples,
            options.backend,
            options.data_dir,
        )
        if options.backend != "vmap":
            # For the whole table, so that a row runs alike whichever others are asked for.
            make_cpu_devices(max(row.config.workers for row in table.rows))
        try:
            sweep.run_missing(jobs, options.out, console, options.seeds_at_once)
        except KeyboardInterrupt:
            console.print("stopped: the same command goes on from the last epoch")
            raise


if __name__ == "__main__":
    main()
