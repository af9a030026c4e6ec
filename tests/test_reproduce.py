"""What is run first within a time budget, and what the command refuses."""

import subprocess
import sys

import pytest

from experiments import reproduce, rows, sweep


def planned(**options) -> list[sweep.Job]:
    return sweep.distinct(
        reproduce.by_priority(reproduce.Options(minutes=1.0, **options), rows.load_all())
    )


def test_one_seed_of_everything_comes_before_more_seeds():
    jobs = planned(seeds=3)
    seeds = [job.config.seed for job in jobs]
    assert seeds == sorted(seeds)
    assert set(seeds) == {0, 1, 2}


def test_the_main_mnist_table_comes_first_then_cifar10_then_alpha_and_tau():
    jobs = planned(seeds=1)
    main = rows.load("mnist_protocols")
    assert [job.label for job in jobs[: len(main.rows)]] == [row.label for row in main.rows]
    rest = jobs[len(main.rows) :]
    assert [job.group for job in rest] == ["cifar10"] * 9 + ["mnist"] * (len(rest) - 9)
    is_alpha = [job.config.period == 1 and job.config.alpha != 0.5 for job in rest[9:]]
    assert is_alpha == sorted(is_alpha, reverse=True)


def test_no_run_is_planned_twice():
    jobs = planned(seeds=2)
    assert len(jobs) == 2 * (34 + 9)  # the distinct rows of the MNIST tables, and CIFAR-10's
    assert len({(job.group, job.name, job.config.seed) for job in jobs}) == len(jobs)


def test_seeds_that_train_together_follow_each_other():
    jobs = planned(seeds=5, seeds_at_once=2)
    later = [job.config.seed for job in jobs if job.config.seed > 0]
    assert later[:4] == [1, 2, 1, 2]
    assert later[-2:] == [3, 4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--minutes", "0"], "--minutes must be positive"),
        (["--minutes", "nan"], "--minutes must be positive"),
        (["--minutes", "1", "--tables", "nowhere"], "no table 'nowhere'"),
        (["--minutes", "1", "--seeds", "0"], "--seeds must be a whole number"),
        (["--minutes", "1", "--epochs", "0"], "--epochs must be a whole number"),
        (["--minutes", "1", "--data-dir", "/nowhere"], "/nowhere"),
    ],
)
def test_bad_input_gets_a_message(arguments, message, tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "experiments.reproduce", *arguments, "--out", tmp_path / "results"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
