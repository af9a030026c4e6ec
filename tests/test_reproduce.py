"""What is run first within a time budget, and what the command refuses."""

import sys
from typing import Any

import pytest

from experiments import reproduce
from experiments.tables import rows, sweep


def planned(**options) -> list[sweep.Job]:
    return sweep.distinct(
        reproduce.by_priority(reproduce.Options(minutes=1.0, **options), rows.of_the_thesis())
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


@pytest.fixture
def run_command(monkeypatch, capsys, tmp_path):
    """Runs, here, the command with its results in tmp_path: exit code, what it showed, its errors."""
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "8")  # as conftest.py has made them

    def run(*arguments: str) -> tuple[Any, str, str]:
        command = ["reproduce", *arguments, "--out", str(tmp_path / "results")]
        monkeypatch.setattr(sys, "argv", command)
        try:
            code = reproduce.main()
        except SystemExit as exit:
            code = exit.code
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--minutes", "0"], "--minutes must be positive"),
        (["--minutes", "nan"], "--minutes must be positive"),
        (["--minutes", "1", "--tables", "nowhere"], "no table 'nowhere'"),
        (["--minutes", "1", "--seeds", "0"], "--seeds must be a whole number"),
        (["--minutes", "1", "--seeds", "1000000000"], "--seeds must be 1000 or less"),
        (["--minutes", "1", "--epochs", "0"], "--epochs must be a whole number"),
        (["--minutes", "1", "--train-examples", "2564"], "a multiple of that; got 2564"),
        (["--minutes", "1", "--data-dir", "/nowhere"], "/nowhere"),
    ],
)
def test_bad_input_gets_a_message(arguments, message, run_command):
    code, _, errors = run_command(*arguments)
    assert code == 2
    (line,) = errors.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_it_runs_what_is_missing_and_shows_a_table_last(run_command, monkeypatch, tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "tiny.toml").write_text(
        'title = "Tiny"\ngroup = "tiny"\n'
        '[settings]\ndataset = "digits"\nwidth = 8\nepochs = 1\n[rows]\n'
        'A = { protocol = "all_reduce", published = { rank0 = 0.5 } }\n'
    )
    monkeypatch.setattr(rows, "DIRECTORY", tmp_path / "tables")
    minutes = ["--minutes", "10", "--backend", "vmap"]
    code, shown, _ = run_command(*minutes, "--seeds", "2")
    assert code is None
    assert "Tiny" in shown
    assert "50.00" in shown  # the published accuracy, in percent
    assert shown.splitlines()[-1].startswith("2 of 2 runs are done")
    code, shown, _ = run_command(*minutes, "--seeds", "3")
    assert "2 of 3 runs are there already" in shown
    assert shown.splitlines()[-1].startswith("3 of 3 runs are done")
