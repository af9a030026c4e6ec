"""Kinds of requirements on rows of a table, and how their runs decide them."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from experiments.links.records import LinkRecord
from experiments.report.grids import points
from experiments.report.intervals import contrast
from experiments.report.summary import SEED_NOISE, Results, RowRuns


class Verdict(enum.Enum):
    """What becomes of a requirement, and of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNDECIDED = "undecided"


class Finding(NamedTuple):
    """What the runs say of a requirement, in words."""

    text: str
    asked: str
    found: str
    interval: str
    basis: str  # what the interval rests on
    verdict: Verdict


class Requirement(Protocol):
    """Something asked of rows of one table."""

    @property
    def text(self) -> str:
        """What is compared."""
        ...

    @property
    def table(self) -> str:
        """The table's name."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """The rows that are needed, at the thesis's length."""
        ...

    @property
    def asked(self) -> str:
        """The bound, in words."""
        ...

    def decide(
        self, runs: dict[str, RowRuns], links: Sequence[LinkRecord], confidence: float
    ) -> tuple[str, str, str, Verdict]:
        """From runs to what is found, its interval, what that rests on, and the verdict.

        Args:
          runs: of the rows that are needed, by their label.
          links: what was measured over slow links.
          confidence: of the interval.
        """
        ...


@dataclass(frozen=True)
class Difference:
    """`Σ c · accuracy > bound`: by an interval wholly above the bound, or wholly below."""

    text: str
    table: str
    weights: dict[str, float]  # label -> c
    bound: float
    figure: str = "rank0_accuracy"

    @property
    def labels(self) -> tuple[str, ...]:
        """As of every requirement."""
        return tuple(self.weights)

    @property
    def asked(self) -> str:
        """As of every requirement."""
        return f"> {points(self.bound)} points"

    def decide(
        self, runs: dict[str, RowRuns], links: Sequence[LinkRecord], confidence: float
    ) -> tuple[str, str, str, Verdict]:
        """As of every requirement."""
        terms = [(c, runs[label].figures(self.figure)) for label, c in self.weights.items()]
        noise = SEED_NOISE.get(next(iter(runs.values())).table.group)
        interval = contrast(terms, confidence, noise)
        verdict = Verdict.UNDECIDED
        if interval.low > self.bound:
            verdict = Verdict.HOLDS
        elif interval.high < self.bound:
            verdict = Verdict.FAILS
        between = f"{points(interval.low)} to {points(interval.high)}"
        return points(interval.estimate), between, interval.basis, verdict


@dataclass(frozen=True)
class ShareOfBytes:
    """A row sends at most such a share of All-reduce's bytes. They are counted: no chance is in it."""

    text: str
    table: str
    row: str
    at_most: float

    @property
    def labels(self) -> tuple[str, ...]:
        """As of every requirement."""
        return (self.row,)

    @property
    def asked(self) -> str:
        """As of every requirement."""
        return f"≤ {self.at_most:.0%}"

    def decide(
        self, runs: dict[str, RowRuns], links: Sequence[LinkRecord], confidence: float
    ) -> tuple[str, str, str, Verdict]:
        """As of every requirement."""
        share = float(runs[self.row].figures("share_of_all_reduce_bytes").mean())
        verdict = Verdict.HOLDS if share <= self.at_most else Verdict.FAILS
        return f"{share:.1%}", "", "counted", verdict


@dataclass(frozen=True)
class SlowLink:
    """Ten times All-reduce's updates a second, or more, where a link carries 100 Mbit/s.

    Where that has not been measured, what is found is the rate of a link that would carry a worker's
    bytes in the time that the run took to compute: much below it, the network is the bottleneck.
    """

    text: str
    table: str
    gossip: str
    all_reduce: str

    @property
    def labels(self) -> tuple[str, ...]:
        """As of every requirement."""
        return self.gossip, self.all_reduce

    @property
    def asked(self) -> str:
        """As of every requirement."""
        return f"{_TIMES} times {self.all_reduce}'s updates/s, measured at 100 Mbit/s"

    def decide(
        self, runs: dict[str, RowRuns], links: Sequence[LinkRecord], confidence: float
    ) -> tuple[str, str, str, Verdict]:
        """As of every requirement."""
        measured = [_over_a_slow_link(runs[label], links) for label in self.labels]
        if None not in measured:
            gossip, all_reduce = (record.updates_per_second for record in measured if record)
            verdict = Verdict.HOLDS if gossip >= _TIMES * all_reduce else Verdict.FAILS
            found = f"{gossip / all_reduce:.1f} times ({gossip:.2g} / {all_reduce:.2g} updates/s)"
            return found, "", "measured once", verdict
        rates = [
            runs[label].figures("bytes_sent_per_worker").mean()
            / runs[label].figures("updates").mean()
            * runs[label].figures("updates_per_second").mean()
            for label in self.labels
        ]
        found = "; ".join(f"{8 * rate / 1e9:.2g} Gbit/s" for rate in rates)
        return found, "", "no slow network was run", Verdict.UNDECIDED


_TIMES = 10


def _over_a_slow_link(runs: RowRuns, links: Sequence[LinkRecord]) -> LinkRecord | None:
    """The measurement of a row's settings over links of 100 Mbit/s."""
    names = ("dataset", "model", "width", "workers", "batch_size", "protocol", "p", "alpha", "period")
    row = {name: getattr(runs.row.config.checked(), name) for name in names} | {"rate": "100mbit"}
    return next((link for link in links if row.items() <= link.settings.items()), None)


def judge(requirement: Requirement, results: Results, confidence: float) -> Finding:
    """What the runs at the thesis's length say of a requirement."""
    rows = {label: results.full(requirement.table, label) for label in requirement.labels}
    runs = {label: found for label, found in rows.items() if found is not None}
    missing = [label for label in rows if label not in runs]
    if missing:
        found = "", "", f"not run: {', '.join(missing)}", Verdict.UNDECIDED
    else:
        found = requirement.decide(runs, results.links, confidence)
    return Finding(requirement.text, requirement.asked, *found)
