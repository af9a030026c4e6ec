"""The claims are decided by their rules: intervals are the usual ones, and nothing else counts."""

import numpy as np
import pytest
from fabricated import write_run
from scipy import stats

from experiments.report.claims import CLAIMS, Claim, findings, verdict
from experiments.report.intervals import contrast
from experiments.report.requirements import Difference, ShareOfBytes, Verdict
from experiments.report.summary import Results
from experiments.tables import rows

MNIST = rows.load("mnist_protocols")
PAIR = {"EG-4-0.031": 1.0, "AR-4": -1.0}


def decide(tmp_path, accuracies: dict[str, list[float]], *requirements, **length) -> Verdict:
    """The verdict on requirements, from rows' accuracies by seed."""
    for label, figures in accuracies.items():
        (row,) = MNIST.select([label])
        for seed, rank0 in enumerate(figures):
            write_run(tmp_path, MNIST, row, rank0, seed, **length)
    claim = Claim(1, "MNIST", "", requirements)
    return verdict(findings(claim, Results(tmp_path, [MNIST])))


def test_the_interval_of_a_difference_is_welch_s(rng):
    x, y = rng.normal(0.98, 0.001, 5), rng.normal(0.97, 0.003, 3)
    ours = contrast([(1.0, x), (-1.0, y)], 0.95, noise=None)
    scipys = stats.ttest_ind(x, y, equal_var=False).confidence_interval(0.95)
    np.testing.assert_allclose(ours[:3], [x.mean() - y.mean(), scipys.low, scipys.high])


def test_the_interval_of_weighted_means_covers_as_often_as_it_says(rng):
    weights, means, deviations = (0.5, 0.5, -1.0), (1.0, 2.0, 3.0), (1.0, 2.0, 3.0)
    truth = np.dot(weights, means)
    covered = 0
    for _ in range(1000):
        terms = [
            (c, rng.normal(mean, deviation, 6))
            for c, mean, deviation in zip(weights, means, deviations, strict=True)
        ]
        interval = contrast(terms, 0.9, noise=None)
        covered += interval.low < truth < interval.high
    # Welch's interval is approximate: 900 expected, with a standard deviation of 9.5; four of them.
    assert abs(covered - 900) < 4 * 9.5


def test_single_runs_are_given_the_published_noise():
    interval = contrast([(1.0, np.array([0.99])), (-1.0, np.array([0.98]))], 0.95, noise=0.001)
    half = 1.959964 * 2**0.5 * 0.001
    np.testing.assert_allclose(interval[:3], [0.01, 0.01 - half, 0.01 + half], rtol=1e-5)


def test_seeds_that_agree_to_the_last_digit_are_not_taken_for_certain():
    same = np.array([0.98, 0.98])
    interval = contrast([(1.0, same), (-1.0, same)], 0.95, noise=0.001)
    assert interval.low < 0 < interval.high


def test_single_runs_without_known_noise_say_nothing():
    interval = contrast([(1.0, np.array([0.99])), (-1.0, np.array([0.98]))], 0.95, noise=None)
    assert interval.low == -np.inf
    assert interval.high == np.inf


@pytest.mark.parametrize(
    ("difference", "expected"),
    [(0.01, Verdict.HOLDS), (-0.01, Verdict.FAILS), (0.0, Verdict.UNDECIDED)],
)
def test_an_interval_above_its_bound_holds_and_one_below_fails(tmp_path, difference, expected):
    accuracies = {"EG-4-0.031": [0.98 + difference], "AR-4": [0.98]}
    assert decide(tmp_path, accuracies, Difference("", MNIST.name, PAIR, 0.0)) is expected


def test_a_margin_moves_the_bound(tmp_path):
    accuracies = {"EG-4-0.031": [0.979], "AR-4": [0.98]}  # a tenth of a point below
    assert decide(tmp_path, accuracies, Difference("", MNIST.name, PAIR, -0.0025)) is Verdict.HOLDS


def test_more_seeds_decide_what_one_cannot(tmp_path):
    one = {"EG-4-0.031": [0.9806], "AR-4": [0.98]}
    many = {label: [x + 1e-5 * k for k in range(4)] for label, (x,) in one.items()}
    requirement = Difference("", MNIST.name, PAIR, 0.0)
    assert decide(tmp_path / "one", one, requirement) is Verdict.UNDECIDED
    assert decide(tmp_path / "many", many, requirement) is Verdict.HOLDS


def test_runs_shorter_than_the_thesis_s_decide_nothing(tmp_path):
    accuracies = {"EG-4-0.031": [0.99], "AR-4": [0.98]}
    requirement = Difference("", MNIST.name, PAIR, 0.0)
    assert decide(tmp_path, accuracies, requirement, epochs=5) is Verdict.UNDECIDED
    assert decide(tmp_path, accuracies, requirement) is Verdict.HOLDS


def test_a_row_that_was_not_run_is_named(tmp_path):
    (row,) = MNIST.select(["AR-4"])
    write_run(tmp_path, MNIST, row, 0.98)
    claim = Claim(1, "MNIST", "", (Difference("", MNIST.name, PAIR, 0.0),))
    (finding,) = findings(claim, Results(tmp_path, [MNIST]))
    assert finding.basis == "not run: EG-4-0.031"
    assert finding.verdict is Verdict.UNDECIDED


def test_one_requirement_that_fails_fails_the_claim(tmp_path):
    accuracies = {"EG-4-0.031": [0.99], "AR-4": [0.98]}
    good = Difference("", MNIST.name, PAIR, 0.0)
    bad = Difference("", MNIST.name, {label: -c for label, c in PAIR.items()}, 0.0)
    unknown = Difference("", MNIST.name, {"NC-4": 1.0}, 0.0)
    assert decide(tmp_path, accuracies, good, good) is Verdict.HOLDS
    assert decide(tmp_path, accuracies, good, unknown) is Verdict.UNDECIDED
    assert decide(tmp_path, accuracies, good, unknown, bad) is Verdict.FAILS


def test_a_share_of_bytes_is_decided_by_the_count_alone(tmp_path):
    def share(bound):
        return ShareOfBytes("", MNIST.name, "EG-4-0.031", bound)  # fabricated with a share of p, 1/32

    assert decide(tmp_path, {"EG-4-0.031": [0.98]}, share(0.04)) is Verdict.HOLDS
    assert decide(tmp_path, {"EG-4-0.031": [0.98]}, share(0.03)) is Verdict.FAILS


def test_intervals_of_a_claim_hold_together(tmp_path):
    def half_width(number):
        claim = Claim(1, "MNIST", "", (Difference("", MNIST.name, PAIR, 0.0),) * number)
        low, high = findings(claim, Results(tmp_path, [MNIST]))[0].interval.split(" to ")
        return (float(high) - float(low.replace("−", "-"))) / 2

    decide(tmp_path, {"EG-4-0.031": [0.98], "AR-4": [0.98]}, Difference("", MNIST.name, PAIR, 0.0))
    noise = 100 * 0.00045 * 2**0.5  # in points; the interval is written with two digits
    assert half_width(1) == pytest.approx(1.960 * noise, abs=0.005)
    assert half_width(5) == pytest.approx(2.576 * noise, abs=0.005)


def test_every_claim_asks_for_rows_that_there_are():
    tables = {name: rows.load(name) for name in rows.names()}
    assert {claim.number for claim in CLAIMS} == {1, 2, 3, 4, 5}
    for claim in CLAIMS:
        assert claim.requirements
        for requirement in claim.requirements:
            tables[requirement.table].select(requirement.labels)
            if isinstance(requirement, Difference):
                assert abs(sum(requirement.weights.values())) < 1e-12  # it compares
