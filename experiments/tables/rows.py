"""The rows of tables, read from the files of `experiments/tables`: experiments as data."""

import dataclasses
import math
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.tasks.task import Metric
from experiments.training.config import KINDS, Config, OnNan, typed
from gossip_jax import checks

DIRECTORY = Path(__file__).parent

_IN_EVERY_NAME = {"protocol", "workers", "p", "period", "alpha", "epochs", "seed", "train_examples"}


@dataclasses.dataclass(frozen=True)
class Published:
    """What the thesis's author published of a row: one run, unless the table says otherwise."""

    rank0: float | None = None
    aggregate: float | None = None


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of a table."""

    label: str
    config: Config  # at the thesis's length, with seed 0
    published: Published
    also_set: tuple[str, ...]  # what the row sets, beside what is in the name of every run

    def run(
        self,
        seed: int,
        epochs: int | None = None,
        train_examples: int | None = None,
        on_nan: OnNan | None = None,
    ) -> Config:
        """The settings of one run of this row; those of the table where none are given."""
        epochs = self.config.epochs if epochs is None else epochs
        validation_examples = self.config.validation_examples
        if train_examples is None:
            train_examples = self.config.train_examples
        elif validation_examples is not None and train_examples != self.config.train_examples:
            # Validation is not to take longer than such a training.
            validation_examples = min(validation_examples, max(train_examples // 5, 1))
        return dataclasses.replace(
            self.config,
            seed=seed,
            on_nan=on_nan or self.config.on_nan,
            epochs=epochs,
            train_examples=train_examples,
            validation_examples=validation_examples,
            validate_every=max(1, epochs // 25),  # some 25 points for a curve
        ).checked()

    def name(self, config: Config) -> str:
        """What tells runs of a table's group apart, and is equal where only the seed differs."""
        parts = [config.protocol, f"W{config.workers}"]
        if config.spec.draws_rounds:
            parts += [f"p{config.p!r}"]
        if config.period != 1:
            parts += [f"tau{config.period}"]
        if "alpha" in config.spec.traced:
            parts += [f"alpha{config.alpha!r}"]
        parts += [f"{field}{getattr(config, field)}" for field in self.also_set]
        if config.train_examples is not None:
            parts += [f"{config.train_examples}examples"]
        return "-".join([*parts, f"{config.epochs}epochs"])


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of experiments."""

    name: str
    title: str
    group: str  # tables of one group share their runs
    order: int  # among the tables
    rows: tuple[Row, ...]
    is_of_thesis: bool = False

    @property
    def metric(self) -> Metric:
        """All rows are scored by this one."""
        return self.rows[0].config.task.metric

    def select(self, labels: Iterable[str] | None) -> tuple[Row, ...]:
        """The rows with these labels, in the table's order; all, for None.

        Raises:
          ValueError: there is no row of that label.
        """
        if labels is None:
            return self.rows
        wanted, known = list(labels), [row.label for row in self.rows]
        if not wanted:
            raise ValueError(f"name a row of {self.name}; its rows are {', '.join(known)}")
        for label in wanted:
            if label not in known:
                raise ValueError(f"{self.name} has no row {label!r}; its rows are {', '.join(known)}")
        return tuple(row for row in self.rows if row.label in wanted)


def names() -> list[str]:
    """Names all tables there are."""
    return sorted(path.stem for path in DIRECTORY.glob("*.toml"))


def load_all() -> list[Table]:
    """Reads all tables, in their order."""
    return sorted(map(load, names()), key=lambda table: (table.order, table.name))


def of_the_thesis() -> list[Table]:
    """Reads the thesis's tables, in their order."""
    return [table for table in load_all() if table.is_of_thesis]


def load(name: str) -> Table:
    """Reads `experiments/tables/NAME.toml`.

    Raises:
      ValueError: there is no such table, or its file is not one.
    """
    if name not in names():
        raise ValueError(f"there is no table {name!r}; there are {', '.join(names())}")
    return parse(name, (DIRECTORY / f"{name}.toml").read_text(encoding="utf-8"))


def parse(name: str, text: str) -> Table:
    """A table from the text of its file.

    Raises:
      ValueError: the text is not TOML, or not a table; it says what is wrong where.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"table {name}: not TOML: {error}") from error
    _allow(f"table {name}", content, {"title", "group", "order", "thesis", "settings", "rows"})
    if missing := {"title", "group", "rows"} - set(content):
        raise ValueError(f"table {name}: {' and '.join(sorted(missing))} must be given")
    kinds = {"title": str, "group": str, "order": int, "thesis": bool, "settings": dict, "rows": dict}
    for key, kind in kinds.items():
        if type(content.get(key, kind())) is not kind:  # true is no order
            raise ValueError(f"table {name}: {key} must be {KINDS[kind]}; got {content[key]!r}")
    if not re.fullmatch(r"[a-z0-9_-]+", content["group"]):
        raise ValueError(
            f"table {name}: group names a directory, of a-z, 0-9, - and _; got {content['group']!r}"
        )
    settings, rows = content.get("settings", {}), content["rows"]
    if not rows:
        raise ValueError(f"table {name}: there must be a row")
    table = Table(
        name,
        content["title"],
        content["group"],
        content.get("order", 1_000),
        tuple(_row(f"table {name}, row {label}", label, settings, row) for label, row in rows.items()),
        content.get("thesis", False),
    )
    metrics = {row.config.task.metric for row in table.rows}
    if len(metrics) > 1:
        labels = " and ".join(sorted(metric.label for metric in metrics))
        raise ValueError(f"table {name}: all rows must be scored by one metric; got {labels}")
    return table


def _row(where: str, label: str, settings: dict[str, Any], row: dict[str, Any]) -> Row:
    if not isinstance(row, dict):
        raise ValueError(f"{where}: a row must be a table of settings; got {row!r}")
    allowed = set(Config().settings()) - {"seed", "validate_every"}  # which `Row.run` decides
    own = {key: value for key, value in row.items() if key != "published"}
    _allow(where, own, allowed)
    _allow(f"{where}, settings", settings, allowed)
    published = row.get("published", {})
    try:
        config = Config(**{key: typed(key, value) for key, value in (settings | own).items()}).checked()
    except (OverflowError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error
    if not isinstance(published, dict):
        raise ValueError(
            f"{where}: published must be a table of rank0 and aggregate; got {published!r}"
        )
    _allow(f"{where}, published", published, {"rank0", "aggregate"})
    for key, value in published.items():
        if config.task.metric.is_share:
            checks.probability(where, f"published {key}", value)
        elif not (type(value) in (int, float) and math.isfinite(value)):
            raise ValueError(f"{where}: published {key} must be a finite number; got {value!r}")
    return Row(label, config, Published(**published), tuple(sorted(set(own) - _IN_EVERY_NAME)))


def _allow(where: str, given: dict[str, Any], allowed: set[str]) -> None:
    for key in given:
        if key not in allowed:
            raise ValueError(f"{where}: there is no {key!r}; there are {', '.join(sorted(allowed))}")
