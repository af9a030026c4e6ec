"""The records in a directory, by the rows of the tables that they belong to."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.common import numerics
from experiments.common.files import exists, files_below
from experiments.links import records as link_records
from experiments.runs import records
from experiments.runs.records import Record
from experiments.tables.rows import Row, Table
from experiments.training.config import Config

SEED_NOISE = {"mnist": 0.00045}
"""By group of tables: the standard deviation of a run's accuracy over seeds, where it was published:
that of the thesis author's four single-worker runs. It stands in where rows have one seed."""


class Length(NamedTuple):
    """How long a run is, and on how much of the data."""

    epochs: int
    train_examples: int | None  # None: on all


@dataclasses.dataclass(frozen=True)
class RowRuns:
    """The runs of a row that have one length: one for each seed, in their order."""

    table: Table
    row: Row
    length: Length
    records: tuple[Record, ...]

    @property
    def is_full(self) -> bool:
        """Whether they are as the thesis's: as long, and without help for a worker that turned NaN."""
        config = self.row.config
        has_help = any(record.settings["on_nan"] != config.on_nan for record in self.records)
        return self.length == (config.epochs, config.train_examples) and not has_help

    def figures(self, name: str) -> np.ndarray:
        """A figure of their results: float64 [n]."""
        return np.array([record.result.flat()[name] for record in self.records], np.float64)

    def scores(self, of: str) -> np.ndarray:
        """The table's metric of "rank0", of the "aggregate", or of every "worker": float64 [n, ...]."""
        return self.figures(f"{of}_{self.table.metric.name}")


class Results:
    """The records in a directory, by the rows of the tables that they belong to."""

    def __init__(self, directory: Path, tables: Sequence[Table]):
        """Reads all of them.

        Raises:
          ValueError: one is damaged, was edited, or is of other settings than its row; it names it.
          OSError: one cannot be read.
        """
        self.tables = tuple(tables)
        self.records = {
            path: records.read(path)
            for path in sorted(_below(directory / "runs"), key=_by_seed)
            if path.match("runs/*/*/seed-*.json")
        }
        self.links = link_records.read_all(directory)
        """What was measured over slow links."""
        self._of_row: dict[tuple[str, str], dict[Length, list[Record]]] = {}
        self.strangers: list[Path] = []
        """Records that belong to no row of these tables."""
        for path, record in self.records.items():
            _require_this_version(path, record)
            length = Length(record.settings["epochs"], record.settings["train_examples"])
            rows = list(self._rows_of(path, record))
            for table, row in rows:
                of_row = self._of_row.setdefault((table.name, row.label), {})
                of_row.setdefault(length, []).append(record)
            if not rows:
                self.strangers.append(path)

    def _rows_of(self, path: Path, record: Record) -> Iterator[tuple[Table, Row]]:
        """The rows that a record belongs to: tables of one group share their runs."""
        group, name, settings = path.parent.parent.name, path.parent.name, record.settings
        for table in self.tables:
            for row in table.rows if table.group == group else ():
                config = row.run(
                    settings["seed"],
                    settings["epochs"],
                    settings["train_examples"],
                    settings["on_nan"],
                )
                if row.name(config) == name:
                    records.require_equal(path, settings, config.settings())
                    yield table, row

    def runs(self, table: Table, row: Row) -> list[RowRuns]:
        """The runs of a row, by length: the thesis's first, then from the longest down."""
        of_row = [
            RowRuns(table, row, length, tuple(found))
            for length, found in self._of_row.get((table.name, row.label), {}).items()
        ]
        return sorted(of_row, key=lambda runs: (runs.is_full, *_size(runs.length)), reverse=True)

    def of_length(self, table: Table, length: Length) -> list[RowRuns]:
        """The runs of a table that have one length, by row."""
        found = [runs for row in table.rows for runs in self.runs(table, row)]
        return [runs for runs in found if runs.length == length]

    def lengths(self, table: Table) -> list[Length]:
        """The lengths of a table's runs, from the longest down."""
        found = {runs.length for row in table.rows for runs in self.runs(table, row)}
        return sorted(found, key=_size, reverse=True)

    def records_of(self, tables: Sequence[Table]) -> list[Record]:
        """The records that belong to rows of these tables, each once."""
        found = {
            id(record): record
            for table in tables
            for row in table.rows
            for runs in self.runs(table, row)
            for record in runs.records
        }
        return list(found.values())

    def full(self, table: str, label: str) -> RowRuns | None:
        """The runs of a row that are as long as the thesis's; None where there are none."""
        full = (
            runs
            for of_name in self.tables
            if of_name.name == table
            for row in of_name.select([label])
            for runs in self.runs(of_name, row)
            if runs.is_full
        )
        return next(full, None)


def _size(length: Length) -> tuple[float, int]:
    """Orders lengths: by examples, then by epochs."""
    return length.train_examples or float("inf"), length.epochs


def _require_this_version(path: Path, record: Record) -> None:
    """Raises ValueError where a record has not the settings of today, or not its name's seed."""
    if set(record.settings) - set(numerics.STANDARD) != set(Config().settings()):
        raise ValueError(
            f"{path} is of another version, with the settings {', '.join(sorted(record.settings))}: "
            f"use another directory, or move it elsewhere to have it run again"
        )
    if path.name != f"seed-{record.settings['seed']}.json":
        raise ValueError(
            f"{path} holds the run of seed {record.settings['seed']}: give it that name, or move it "
            f"elsewhere"
        )


def _below(directory: Path) -> list[Path]:
    """All files in a directory, where there is one; OSError where one in it cannot be read."""
    return files_below(directory) if exists(directory) else []


def _by_seed(path: Path) -> tuple[str, int]:
    seed = path.stem.removeprefix("seed-")
    return str(path.parent), int(seed) if seed.isdecimal() else -1
