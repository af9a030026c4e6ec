"""Kinds of requirements on rows of a table, and how their runs decide them."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from experiments.links.records import LinkRecord
from experiments.report.intervals import contrast
from experiments.report.summary import SEED_NOISE, Results, RowRuns
from experiments.tasks.classification import ACCURACY


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


class Evidence(NamedTuple):
    """What a requirement is decided by."""

    runs: dict[str, RowRuns]  # of the rows that are needed, by their label
    links: Sequence[LinkRecord]  # what was measured over slow links
    confidence: float  # of the interval


Decision = tuple[str, str, str, Verdict]
"""What is found, its interval, what that rests on, and the verdict."""


@dataclass(frozen=True)
class Requirement:
    """Something asked of rows of one table."""

    text: str  # what is compared
    table: str  # the table's name

    @property
    def labels(self) -> tuple[str, ...]:
        """The rows that are needed, at the thesis's length."""
        raise NotImplementedError

    @property
    def asked(self) -> str:
        """The bound, in words."""
        raise NotImplementedError

    def decide(self, evidence: Evidence) -> Decision:
        """What is found, its interval, what that rests on, and the verdict."""
        raise NotImplementedError


@dataclass(frozen=True)
class Difference(Requirement):
    """`Σ c · accuracy > bound`: by an interval wholly above the bound, or wholly below."""

    weights: dict[str, float]  # label -> c
    bound: float
    figure: str = "rank0_accuracy"

    @property
    def labels(self) -> tuple[str, ...]:
        """The rows that it weighs are needed."""
        return tuple(self.weights)

    @property
    def asked(self) -> str:
        """The sum is to lie above the bound."""
        return f"> {ACCURACY.difference(self.bound)} points"

    def decide(self, evidence: Evidence) -> Decision:
        """The interval over seeds decides."""
        terms = [(c, evidence.runs[label].figures(self.figure)) for label, c in self.weights.items()]
        noise = SEED_NOISE.get(next(iter(evidence.runs.values())).table.group)
        interval = contrast(terms, evidence.confidence, noise)
        verdict = Verdict.UNDECIDED
        if interval.low > self.bound:
            verdict = Verdict.HOLDS
        elif interval.high < self.bound:
            verdict = Verdict.FAILS
        between = f"{ACCURACY.difference(interval.low)} to {ACCURACY.difference(interval.high)}"
        return ACCURACY.difference(interval.estimate), between, interval.basis, verdict


@dataclass(frozen=True)
class ShareOfBytes(Requirement):
    """A row sends at most such a share of All-reduce's bytes. They are counted: no chance is in it."""

    row: str
    at_most: float

    @property
    def labels(self) -> tuple[str, ...]:
        """The one row is needed."""
        return (self.row,)

    @property
    def asked(self) -> str:
        """The share is to be no larger."""
        return f"≤ {self.at_most:.0%}"

    def decide(self, evidence: Evidence) -> Decision:
        """The bytes that were counted decide."""
        share = float(evidence.runs[self.row].figures("share_of_all_reduce_bytes").mean())
        verdict = Verdict.HOLDS if share <= self.at_most else Verdict.FAILS
        return f"{share:.1%}", "", "counted", verdict


@dataclass(frozen=True)
class SlowLink(Requirement):
    """Ten times All-reduce's updates a second, or more, where a link carries 100 Mbit/s.

    Where that has not been measured, what is found is the rate of a link that would carry a worker's
    bytes in the time that the run took to compute: much below it, the network is the bottleneck.
    """

    gossip: str
    all_reduce: str

    @property
    def labels(self) -> tuple[str, ...]:
        """Both rows are needed."""
        return self.gossip, self.all_reduce

    @property
    def asked(self) -> str:
        """So many times the updates are asked for."""
        return f"{_TIMES} times {self.all_reduce}'s updates/s, measured at 100 Mbit/s"

    def decide(self, evidence: Evidence) -> Decision:
        """What was measured over a slow link decides."""
        measured = [_over_a_slow_link(evidence.runs[label], evidence.links) for label in self.labels]
        if None not in measured:
            gossip, all_reduce = (record.updates_per_second for record in measured if record)
            verdict = Verdict.HOLDS if gossip >= _TIMES * all_reduce else Verdict.FAILS
            found = f"{gossip / all_reduce:.1f} times ({gossip:.2g} / {all_reduce:.2g} updates/s)"
            return found, "", "measured once", verdict
        rates = [
            evidence.runs[label].figures("bytes_sent_per_worker").mean()
            / evidence.runs[label].figures("updates").mean()
            * evidence.runs[label].figures("updates_per_second").mean()
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
        found = requirement.decide(Evidence(runs, results.links, confidence))
    return Finding(requirement.text, requirement.asked, *found)
