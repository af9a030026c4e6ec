"""The thesis's five claims, and the rules by which runs decide them. The rules came before the runs.

A claim is a list of requirements: that a weighted sum of rows' mean accuracies lies above a bound. The
confidence of all intervals of a claim together is 95% (Bonferroni). Where each lies wholly above its
bound the claim holds; where one lies wholly below, it does not; else, and where a row that is needed
has not been run at the thesis's length, it is undecided.
"""

import dataclasses
import enum
from typing import NamedTuple

from experiments.summary import SEED_NOISE, Interval, Results, contrast

CONFIDENCE = 0.95


class Verdict(enum.Enum):
    """What becomes of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNDECIDED = "undecided"


@dataclasses.dataclass(frozen=True)
class Requirement:
    """`Σ c · accuracy > bound`, over rows of one table."""

    text: str
    table: str
    rows: dict[str, float]  # label -> c
    bound: float
    figure: str = "rank0_accuracy"


@dataclasses.dataclass(frozen=True)
class ShareOfBytes:
    """That a row sends at most such a share of All-reduce's bytes. They are counted: no chance is in it."""

    text: str
    table: str
    row: str
    at_most: float


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim, on one dataset."""

    number: int
    dataset: str
    text: str
    requirements: tuple[Requirement | ShareOfBytes, ...]
    note: str = ""


class Finding(NamedTuple):
    """What the runs say of a requirement."""

    text: str
    interval: Interval | None  # None: a row that is needed has not been run at the thesis's length
    bound: str
    verdict: Verdict


_ABOUT = 0.0025  # a quarter of a percentage point: what the project calls "about the same" on MNIST
_ABOUT_CIFAR10 = 0.01
_SMALL_PART = 0.10
_AT_LEAST_AS_GOOD = 0.0005


def _gossip_reaches_all_reduce(table: str, margin: float) -> tuple[Requirement | ShareOfBytes, ...]:
    difference = {"EG-4-0.031": 1.0, "AR-4": -1.0}
    return (
        Requirement("EG-4-0.031 − AR-4, rank-0", table, difference, -margin),
        Requirement("EG-4-0.031 − AR-4, aggregate", table, difference, -margin, "aggregate_accuracy"),
        ShareOfBytes("bytes of EG-4-0.031 / bytes of AR-4", table, "EG-4-0.031", _SMALL_PART),
    )


def _elastic_against_gossiping(table: str) -> tuple[Requirement, ...]:
    low, high = {"EG-4-0.002": 1.0, "GS-4-0.002": -1.0}, {"EG-4-0.031": 1.0, "GS-4-0.031": -1.0}
    return (
        Requirement(
            "EG − GS, mean of p = 1/32 and p = 1/512",
            table,
            {label: c / 2 for label, c in (low | high).items()},
            -_AT_LEAST_AS_GOOD,
        ),
        Requirement(
            "(EG − GS at p = 1/512) − (EG − GS at p = 1/32)",
            table,
            low | {label: -c for label, c in high.items()},
            0.0,
        ),
    )


def _best_alpha(prefix: str, other: str) -> Requirement:
    rows = {f"{prefix}-0.50": 1.0, f"{prefix}-{other}": -1.0}
    return Requirement(f"{prefix}: α = 0.5 − α = {other}", "mnist_alpha", rows, 0.0)


CLAIMS = (
    Claim(
        1,
        "MNIST",
        "Gossip reaches about the accuracy of All-reduce SGD at a small part of its communication.",
        _gossip_reaches_all_reduce("mnist_protocols", _ABOUT),
    ),
    Claim(
        1,
        "CIFAR-10",
        "Gossip reaches about the accuracy of All-reduce SGD at a small part of its communication.",
        _gossip_reaches_all_reduce("cifar10_protocols", _ABOUT_CIFAR10),
    ),
    Claim(
        2,
        "MNIST",
        "α near 0.5 is best; very low (0.05) or very high (0.95) values lose accuracy.",
        (
            _best_alpha("EG-4-0.0312", "0.05"),
            _best_alpha("EG-4-0.0312", "0.95"),
            _best_alpha("EG-4-0.0005", "0.05"),
            _best_alpha("EG-4-0.0005", "0.95"),
            _best_alpha("EG-8-0.0005", "0.05"),
        ),
    ),
    Claim(
        3,
        "MNIST",
        "Elastic Gossip is at least as good as Gossiping SGD, most clearly at low probabilities.",
        _elastic_against_gossiping("mnist_protocols"),
    ),
    Claim(
        3,
        "CIFAR-10",
        "Elastic Gossip is at least as good as Gossiping SGD, most clearly at low probabilities.",
        _elastic_against_gossiping("cifar10_protocols"),
    ),
    Claim(
        4,
        "MNIST",
        "Accuracy falls as p falls below about 1/8, and as W grows.",
        (
            Requirement(
                "EG-4: p = 1/8 − p = 1/512",
                "mnist_protocols",
                {"EG-4-0.125": 1.0, "EG-4-0.002": -1.0},
                0.0,
            ),
            Requirement(
                "EG at p = 1/32: W = 4 − W = 8",
                "mnist_protocols",
                {"EG-4-0.031": 1.0, "EG-8-0.031": -1.0},
                0.0,
            ),
        ),
    ),
    Claim(
        4,
        "CIFAR-10",
        "Accuracy falls as p falls below about 1/8. (The thesis has W = 4 only.)",
        (
            Requirement(
                "EG-4: p = 1/8 − p = 1/512",
                "cifar10_protocols",
                {"EG-4-0.125": 1.0, "EG-4-0.002": -1.0},
                0.0,
            ),
        ),
    ),
    Claim(
        5,
        "MNIST",
        "The saving matters where the network is the bottleneck.",
        (),
        note="To be decided on a network that is really slow, by updates a second. No run here was.",
    ),
)


def findings(claim: Claim, results: Results) -> list[Finding]:
    """What the runs say of each requirement of a claim."""
    confidence = 1 - (1 - CONFIDENCE) / max(len(claim.requirements), 1)
    return [_finding(requirement, results, confidence) for requirement in claim.requirements]


def verdict(found: list[Finding]) -> Verdict:
    """What follows for the claim."""
    verdicts = {finding.verdict for finding in found}
    if Verdict.FAILS in verdicts:
        return Verdict.FAILS
    return Verdict.HOLDS if verdicts == {Verdict.HOLDS} else Verdict.UNDECIDED


def _finding(requirement: Requirement | ShareOfBytes, results: Results, confidence: float) -> Finding:
    if isinstance(requirement, ShareOfBytes):
        bound = f"≤ {requirement.at_most:.0%}"
        runs = results.full(requirement.table, requirement.row)
        if runs is None:
            return Finding(requirement.text, None, bound, Verdict.UNDECIDED)
        share = float(runs.figures("share_of_all_reduce_bytes").mean())
        decided = Verdict.HOLDS if share <= requirement.at_most else Verdict.FAILS
        return Finding(requirement.text, Interval(share, share, share, "counted"), bound, decided)

    bound = f"> {100 * requirement.bound:+.2f} points"
    rows = {label: results.full(requirement.table, label) for label in requirement.rows}
    found = {label: runs for label, runs in rows.items() if runs is not None}
    if len(found) < len(rows):
        return Finding(requirement.text, None, bound, Verdict.UNDECIDED)
    group = next(iter(found.values())).table.group
    interval = contrast(
        [(c, found[label].figures(requirement.figure)) for label, c in requirement.rows.items()],
        confidence,
        SEED_NOISE.get(group),
    )
    decided = Verdict.UNDECIDED
    if interval.low > requirement.bound:
        decided = Verdict.HOLDS
    elif interval.high < requirement.bound:
        decided = Verdict.FAILS
    return Finding(requirement.text, interval, bound, decided)
