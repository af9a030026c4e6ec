"""What the commands that run tables are told alike."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.common.cache import keep_programs
from experiments.common.cli import flag, make_cpu_devices
from experiments.tables import sweep
from experiments.tables.rows import Row, Table
from experiments.tables.sweep import Job
from experiments.training.config import OnNan
from gossip_jax import checks
from gossip_jax.workers import Backend

_MOST_SEEDS = 1_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Which runs of a row, how long, where."""

    seeds: int = 1
    """Runs of each row, with the seeds 0, 1, ..."""

    epochs: int | None = None
    """A shorter, or longer, run than the table's; it is kept beside the others, and labelled."""

    train_examples: int | None = None
    """Train on so many examples only; kept beside the others, and labelled."""

    seeds_at_once: int = 1
    """Seeds of a row that train in one program (vmap over seeds). It does not pay on a CPU."""

    on_nan: OnNan | None = None
    """What to do when a worker turns NaN, as experiments.train has it; where not given, as the table
    says, or stop: the run then has no record, and the others go on."""

    backend: Backend = "auto"
    """Where replicas are, as experiments.train has it. On CPU, all but vmap make as many CPU devices as
    there are workers."""

    data_dir: Path | None = None
    """Where the prepared datasets of tensorflow-datasets are. Where not given: $TFDS_DATA_DIR,
    ~/tensorflow_datasets or, beside the checkout, shared/data/tfds."""

    cache: bool = True
    """Keep compiled programs in ~/.cache/gossip_jax ($XDG_CACHE_HOME), for the next run to find."""

    out: Path = Path("results")
    """The directory of the results."""

    def check(self) -> None:
        """Raises ValueError where one is out of range."""
        for name in ("seeds", "seeds_at_once"):
            value = getattr(self, name)
            checks.at_least_one("table", flag(name), value)
            if value > _MOST_SEEDS:
                raise ValueError(f"table: {flag(name)} must be {_MOST_SEEDS} or less; got {value}")

    def jobs(self, table: Table, rows: Sequence[Row], seeds: Iterable[int]) -> list[Job]:
        """The runs of these rows with these seeds.

        Raises:
          ValueError: the settings of a row are out of range.
        """
        return sweep.jobs_of(
            table,
            rows,
            list(seeds),
            self.epochs,
            self.train_examples,
            self.backend,
            self.data_dir,
            self.on_nan,
        )

    def prepare(self, tables: Sequence[Table]) -> None:
        """Has JAX make CPU devices for all rows, so that a row runs alike whichever others are run; and
        keep what it compiles.
        """
        if self.cache:
            keep_programs()
        if self.backend != "vmap":
            make_cpu_devices(max(row.config.workers for table in tables for row in table.rows))
