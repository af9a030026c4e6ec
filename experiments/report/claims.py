"""The thesis's five claims, and what decides each. The rules came before the runs.

A claim holds where each of its requirements does, and does not hold where one does not. Else, and
where a row that is needed has not been run at the thesis's length, it is undecided.
"""

import dataclasses

from experiments.report.requirements import (
    Difference,
    Finding,
    Requirement,
    ShareOfBytes,
    SlowLink,
    Verdict,
    judge,
)
from experiments.report.summary import Results

CONFIDENCE = 0.95
"""That all intervals of a claim together hold their true values (Bonferroni)."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim, on one dataset."""

    number: int
    dataset: str
    text: str
    requirements: tuple[Requirement, ...]


_ABOUT = 0.0025  # a quarter of a percentage point: what the project calls "about the same" on MNIST
_ABOUT_CIFAR10 = 0.01
_SMALL_PART = 0.10
_AT_LEAST_AS_GOOD = 0.0005


def _gossip_reaches_all_reduce(table: str, margin: float) -> tuple[Requirement, ...]:
    difference = {"EG-4-0.031": 1.0, "AR-4": -1.0}
    return (
        Difference("EG-4-0.031 − AR-4, rank-0", table, difference, -margin),
        Difference("EG-4-0.031 − AR-4, aggregate", table, difference, -margin, "aggregate_accuracy"),
        ShareOfBytes("bytes of EG-4-0.031 / bytes of AR-4", table, "EG-4-0.031", _SMALL_PART),
    )


def _elastic_against_gossiping(table: str) -> tuple[Requirement, ...]:
    low, high = {"EG-4-0.002": 1.0, "GS-4-0.002": -1.0}, {"EG-4-0.031": 1.0, "GS-4-0.031": -1.0}
    return (
        Difference(
            "EG − GS, mean of p = 1/32 and p = 1/512",
            table,
            {label: c / 2 for label, c in (low | high).items()},
            -_AT_LEAST_AS_GOOD,
        ),
        Difference(
            "(EG − GS at p = 1/512) − (EG − GS at p = 1/32)",
            table,
            low | {label: -c for label, c in high.items()},
            0.0,
        ),
    )


def _best_alpha(prefix: str, other: str) -> Requirement:
    rows = {f"{prefix}-0.50": 1.0, f"{prefix}-{other}": -1.0}
    return Difference(f"{prefix}: α = 0.5 − α = {other}", "mnist_alpha", rows, 0.0)


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
            Difference(
                "EG-4: p = 1/8 − p = 1/512",
                "mnist_protocols",
                {"EG-4-0.125": 1.0, "EG-4-0.002": -1.0},
                0.0,
            ),
            Difference(
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
            Difference(
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
        (
            SlowLink(
                "link rate at which sending takes as long as computing: EG-4-0.031; AR-4",
                "mnist_protocols",
                "EG-4-0.031",
                "AR-4",
            ),
        ),
    ),
)


def findings(claim: Claim, results: Results) -> list[Finding]:
    """What the runs say of each requirement of a claim."""
    confidence = 1 - (1 - CONFIDENCE) / len(claim.requirements)
    return [judge(requirement, results, confidence) for requirement in claim.requirements]


def verdict(found: list[Finding]) -> Verdict:
    """Says what follows for the claim."""
    verdicts = {finding.verdict for finding in found}
    if Verdict.FAILS in verdicts:
        return Verdict.FAILS
    return Verdict.HOLDS if verdicts == {Verdict.HOLDS} else Verdict.UNDECIDED
