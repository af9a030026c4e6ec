"""Many runs: each is what a plain run is, is stopped and goes on to the bit, and never runs twice."""

import collections
import dataclasses
import functools
import io
import itertools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

from experiments.runs import faults, records
from experiments.runs.faults import Diverged
from experiments.runs.records import Record
from experiments.tables import rows, sweep
from experiments.tables.sweep import Job
from experiments.tasks import data
from experiments.training import loop, run
from experiments.training.program import Programs
from experiments.training.results import EpochMetrics, Result
from gossip_jax import training

SETTINGS = 'dataset = "digits"\nwidth = 16\nepochs = 3'
GOSSIP = 'A = { protocol = "elastic_gossip", p = 0.25 }'
ROWS = {
    "no_communication": 'A = { protocol = "no_communication" }',
    "elastic_gossip": GOSSIP,
    "all_reduce": 'A = { protocol = "all_reduce" }',
    "elastic_averaging": 'A = { protocol = "elastic_averaging", period = 4 }',
    "halved": 'A = { protocol = "elastic_gossip", p = 0.25, halve_after = [1, 2] }',
}


def table(*lines: str, settings: str = SETTINGS) -> rows.Table:
    head = ['title = "Tiny"', 'group = "tiny"', "[settings]", settings, "[rows]"]
    return rows.parse("tiny", "\n".join([*head, *lines]))


def jobs(
    *lines: str,
    seeds: Sequence[int] = (0,),
    settings: str = SETTINGS,
    backend: Any = "vmap",
    on_nan: Any = None,
) -> list[Job]:
    tiny = table(*lines, settings=settings)
    return sweep.jobs_of(tiny, tiny.rows, seeds, backend=backend, on_nan=on_nan)


def finish(wanted: Sequence[Job], results: Path, together: int = 1) -> str:
    """Runs what is missing to the end: what it showed."""
    shown = io.StringIO()
    assert sweep.run_missing(wanted, results, Console(file=shown, width=200), together)
    return shown.getvalue()


def read(job: Job, results: Path) -> Record:
    record = job.record(results)
    assert record is not None
    return record


def outcome(result: Result, metrics: Sequence[EpochMetrics]) -> str:
    """All of a run's figures to the bit, NaN equal to NaN, but for the time that it took."""
    return repr(
        (result._replace(updates_per_second=0.0), [one._replace(seconds=0.0) for one in metrics])
    )


def outcome_of(job: Job, results: Path) -> str:
    record = read(job, results)
    return outcome(record.result, record.metrics)


@pytest.fixture(scope="module")
def digits():
    return data.load("digits")


@pytest.fixture(scope="module")
def programs(digits) -> Programs:
    return Programs(digits)


@pytest.fixture(autouse=True)
def compile_once(programs, monkeypatch) -> None:
    """For all tests: what they compare with has programs of its own."""
    monkeypatch.setattr(sweep, "Programs", lambda _: programs)


@pytest.fixture(scope="module")
def plain_outcome(digits) -> Callable[[Job], str]:
    """Of a run without records and checkpoints, as `experiments.train` makes it."""

    of_their_own = Programs(digits)

    @functools.cache
    def finish_plainly(job: Job) -> str:
        setup = run.set_up(job.config, digits, of_their_own)
        after = list(loop.epochs_of_one(setup, run.start(setup)))
        return outcome(run.result(setup, after[-1][0]), [metrics for _, metrics in after if metrics])

    return finish_plainly


@pytest.fixture
def stop_after_each_epoch(monkeypatch):
    """Has Ctrl-C come after every epoch; the function it gives counts the starts to the end."""
    epochs = []

    def update(_: Any, after: Sequence[loop.Epoch]) -> None:
        epochs.append(after[0].progress.epoch)
        raise KeyboardInterrupt

    def finish_in_pieces(wanted: Sequence[Job], results: Path, together: int = 1) -> list[int]:
        epochs.clear()
        with monkeypatch.context() as patched:
            patched.setattr(sweep.EpochProgress, "update", update)
            while any(job.record(results) is None for job in wanted):
                with pytest.raises(KeyboardInterrupt):
                    finish(wanted, results, together)
        return list(epochs)

    return finish_in_pieces


def contents(directory: Path) -> dict[Path, tuple[bytes, int]]:
    """What is in its files and when that was written, whatever process holds the lock."""
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def forbid_training(monkeypatch) -> None:
    def train(*_: Any) -> None:
        raise AssertionError("trained")

    monkeypatch.setattr(loop, "epochs", train)


def kill(*_: Any) -> None:
    raise KeyboardInterrupt


def leave_checkpoints(job: Job, results: Path, monkeypatch) -> None:
    """Kills the run when it is to write its record."""
    with monkeypatch.context() as patched:
        patched.setattr(records, "write", kill)
        with pytest.raises(KeyboardInterrupt):
            finish([job], results)
    assert job.checkpoints(results).epochs() == [1, 2]


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])


@pytest.mark.slow
def test_a_record_is_what_a_plain_run_gives(plain_outcome, tmp_path):
    (job,) = jobs(GOSSIP)
    finish([job], tmp_path)
    assert outcome_of(job, tmp_path) == plain_outcome(job)
    assert read(job, tmp_path).settings == job.config.settings()
    assert [metrics.epoch for metrics in read(job, tmp_path).metrics] == [1, 2, 3]
    assert not job.checkpoints(tmp_path).path.exists()


@pytest.mark.parametrize(
    ("row", "backend"),
    [
        # Learning rates that change, and a centre: states that others do not have.
        *((ROWS[name], "vmap") for name in ("halved", "elastic_averaging")),
        *(pytest.param(row, "vmap", marks=pytest.mark.slow) for row in list(ROWS.values())[:3]),
        *(pytest.param(GOSSIP, one, marks=pytest.mark.slow) for one in ("pmap", "shard_map")),
    ],
)
def test_a_run_that_is_stopped_after_each_epoch_ends_as_an_unbroken_one(
    row, backend, stop_after_each_epoch, plain_outcome, tmp_path
):
    (job,) = jobs(row, backend=backend)
    # Not "strict": optax's schedule of learning rates compares a float with an integer.
    with jax.numpy_dtype_promotion("standard"):
        assert stop_after_each_epoch([job], tmp_path) == [1, 2, 3]
        assert outcome_of(job, tmp_path) == plain_outcome(job)
    assert not job.checkpoints(tmp_path).path.exists()


def test_time_that_is_up_ends_after_an_epoch_and_the_next_start_goes_on(
    plain_outcome, monkeypatch, tmp_path
):
    (job,) = jobs(GOSSIP)
    now = [0.0]

    def update(*_: Any) -> None:
        now[0] += 10  # that an epoch takes

    monkeypatch.setattr(sweep.EpochProgress, "update", update)
    monkeypatch.setattr(sweep, "time", SimpleNamespace(monotonic=lambda: now[0]))
    console = Console(file=io.StringIO())
    assert not sweep.run_missing([job], tmp_path, console, deadline=0)
    assert job.checkpoints(tmp_path).epochs() == []
    assert not sweep.run_missing([job], tmp_path, console, deadline=25)
    assert job.checkpoints(tmp_path).epochs() == [1, 2]
    # Time may be up when the last epoch has been trained: that is the end.
    assert sweep.run_missing([job], tmp_path, console, deadline=25)
    assert now == [30]
    assert outcome_of(job, tmp_path) == plain_outcome(job)


def test_provenance_has_an_entry_for_each_start(stop_after_each_epoch, tmp_path):
    (job,) = jobs(ROWS["no_communication"])
    stop_after_each_epoch([job], tmp_path)
    provenance = read(job, tmp_path).provenance
    assert [start["from_epoch"] for start in provenance] == [0, 1, 2]
    for start in provenance:
        assert start["placement"] == "vmap"
        assert start["devices"]
        assert {"began", "platform", "commit"} <= set(start)
        assert {"python", "jax", "gossip_jax"} <= set(start["versions"])


def test_the_count_of_bytes_and_seconds_goes_on(stop_after_each_epoch, tmp_path):
    (job,) = jobs(GOSSIP)
    stop_after_each_epoch([job], tmp_path)
    record = read(job, tmp_path)
    seconds = [metrics.seconds for metrics in record.metrics]
    assert seconds == sorted(set(seconds))
    assert record.result.updates_per_second == record.result.updates / seconds[-1]
    assert record.result.exchanges == record.metrics[-1].exchanges > record.metrics[0].exchanges > 0


def test_a_finished_run_never_runs_again(monkeypatch, tmp_path):
    wanted = jobs(GOSSIP, seeds=(0, 1))
    finish(wanted, tmp_path)
    before = contents(tmp_path)
    forbid_training(monkeypatch)
    assert "2 of 2 runs are there already" in finish(wanted, tmp_path)
    assert contents(tmp_path) == before


def test_what_two_tables_share_runs_once(monkeypatch, tmp_path):
    first = jobs(GOSSIP, 'B = { protocol = "all_reduce" }')
    second = jobs('other_label = { protocol = "elastic_gossip", p = 0.25, alpha = 0.5 }')
    finish([*first, *second], tmp_path)
    assert len(contents(tmp_path)) == 2
    before = contents(tmp_path)
    forbid_training(monkeypatch)
    assert "1 of 1 runs are there already" in finish(second, tmp_path)
    assert contents(tmp_path) == before


def test_a_run_wanted_twice_trains_once(monkeypatch, tmp_path):
    trained = collections.Counter()
    epochs = loop.epochs

    def counted(setups: Sequence[run.Setup], *arguments: Any) -> Any:
        trained.update(setup.config.seed for setup in setups)
        return epochs(setups, *arguments)

    monkeypatch.setattr(loop, "epochs", counted)
    (job,) = jobs(ROWS["no_communication"])
    finish([job, job._replace(label="B")], tmp_path, together=2)
    assert trained == {0: 1}


def test_rows_of_one_name_and_other_settings_are_refused(monkeypatch, tmp_path):
    forbid_training(monkeypatch)
    fast = jobs(GOSSIP.replace("A", "B"), settings=SETTINGS + "\nlearning_rate = 0.1")
    with pytest.raises(ValueError, match="the rows A and B of tiny are both called elastic_gossip-W4"):
        finish([*jobs(GOSSIP), *fast], tmp_path)


def test_rows_that_differ_in_p_alpha_tau_peers_and_seed_share_a_program(digits):
    programs = Programs(digits)
    config = jobs(GOSSIP)[0].config
    program = programs(config, 9)
    for free in (
        {"p": 0.5},
        {"alpha": 0.9},
        {"period": 4},
        {"peers": "pairing"},
        {"seed": 3},
        {"epochs": 9},
    ):
        assert programs(dataclasses.replace(config, **free), 9) is program, free
    for fixed in (
        {"protocol": "gossiping_sgd"},
        {"workers": 2},
        {"width": 8},
        {"learning_rate": 0.1},
        {"batch_size": 64},
        {"halve_after": (1,)},
        {"backend": "pmap"},
    ):
        assert programs(dataclasses.replace(config, **fixed), 9) is not program, fixed
    assert programs(config, 10) is not program
    # Its period is a part of EASGD's program, and so is what of its rounds it uses.
    easgd = dataclasses.replace(config, protocol="elastic_averaging")
    assert programs(easgd, 9) is not programs(dataclasses.replace(easgd, period=2), 9)


@pytest.mark.slow
def test_one_compilation_serves_all_rows_that_share_a_program(monkeypatch, tmp_path):
    """And their results are those of programs of their own: nothing of a row is left in another's.

    Rounds of pairs are compiled for themselves, since they are known to use fewer routes.
    """
    monkeypatch.setattr(sweep, "Programs", Programs)
    traced = []
    train_epoch = training.train_epoch

    def counted(*arguments: Any, **options: Any) -> Any:
        traced.append(arguments)
        return train_epoch(*arguments, **options)

    monkeypatch.setattr(training, "train_epoch", counted)
    gossip = 'protocol = "elastic_gossip"'
    alike = [
        f"A = {{ {gossip}, p = 0.25 }}",
        f"B = {{ {gossip}, p = 0.5, alpha = 0.9 }}",
        f"C = {{ {gossip}, p = 1, period = 4 }}",
        f'D = {{ {gossip}, p = 0.5, peers = "pairing" }}',
    ]
    wanted = jobs(*alike) + jobs(alike[0], seeds=(1,)) + jobs(alike[3], seeds=(1,))
    finish(wanted, tmp_path / "together")
    assert len(traced) == 2
    for job in wanted[2:4]:
        finish([job], tmp_path / "alone")
        assert outcome_of(job, tmp_path / "together") == outcome_of(job, tmp_path / "alone")

    traced.clear()
    others = jobs(f"E = {{ {gossip}, workers = 2 }}", 'F = { protocol = "gossiping_sgd" }')
    finish(others, tmp_path / "others")
    assert len(traced) == 2


def require_alike(first: Record, second: Record) -> None:
    """Equal to rounding: the programs of one run and of several are not the same."""
    assert first.result.exchanges == second.result.exchanges
    assert first.result.bytes_sent_per_worker == second.result.bytes_sent_per_worker
    # Of 360 test images, an accuracy may then differ by one.
    np.testing.assert_allclose(
        first.result.scores["worker_accuracy"], second.result.scores["worker_accuracy"], atol=1.5 / 360
    )
    np.testing.assert_allclose(
        first.result.consensus_distance, second.result.consensus_distance, rtol=1e-3
    )
    losses = [[metrics.training_loss for metrics in record.metrics] for record in (first, second)]
    np.testing.assert_allclose(*losses, rtol=1e-4)


@pytest.mark.parametrize("backend", ["vmap", pytest.param("pmap", marks=pytest.mark.slow)])
def test_seeds_that_train_at_once_give_what_each_gives_alone(backend, tmp_path):
    wanted = jobs(GOSSIP, seeds=(0, 1, 2), backend=backend)
    shown = finish(wanted, tmp_path / "together", together=2)
    assert "seed 0 to 1" in shown
    assert "seed 2," in shown
    finish(wanted, tmp_path / "alone")
    for job in wanted:
        require_alike(read(job, tmp_path / "together"), read(job, tmp_path / "alone"))
    losses = {read(job, tmp_path / "together").metrics[0].training_loss for job in wanted}
    assert len(losses) == 3


def test_seeds_that_train_at_once_go_on_to_the_bit(stop_after_each_epoch, tmp_path):
    wanted = jobs(GOSSIP, seeds=(0, 1))
    finish(wanted, tmp_path / "whole", together=2)
    assert stop_after_each_epoch(wanted, tmp_path / "pieces", together=2) == [1, 2, 3]
    for job in wanted:
        assert outcome_of(job, tmp_path / "pieces") == outcome_of(job, tmp_path / "whole")


def test_seeds_killed_between_their_checkpoints_go_on_from_the_last_in_common(monkeypatch, tmp_path):
    wanted = jobs(GOSSIP, seeds=(0, 1))
    finish(wanted, tmp_path / "whole", together=2)

    results, calls = tmp_path / "killed", itertools.count(1)
    save = sweep.Checkpoints.save

    def killed(*arguments: Any, **options: Any) -> None:
        if next(calls) == 4:  # of epoch 2, the second seed's
            raise KeyboardInterrupt
        save(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(sweep.Checkpoints, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            finish(wanted, results, together=2)
    assert [job.checkpoints(results).epochs() for job in wanted] == [[1, 2], [1]]
    finish(wanted, results, together=2)
    for job in wanted:
        assert outcome_of(job, results) == outcome_of(job, tmp_path / "whole")
        assert [start["from_epoch"] for start in read(job, results).provenance] == [0, 1]


def test_seeds_killed_between_their_records_finish(monkeypatch, tmp_path):
    wanted = jobs(GOSSIP, seeds=(0, 1))
    write = records.write

    def killed(path: Path, record: Record) -> None:
        if record.settings["seed"] == 1:
            raise KeyboardInterrupt
        write(path, record)

    with monkeypatch.context() as patched:
        patched.setattr(records, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            finish(wanted, tmp_path / "killed", together=2)
    before = contents(tmp_path / "killed" / "runs")
    assert len(before) == 1
    finish(wanted, tmp_path / "killed", together=2)
    assert contents(tmp_path / "killed" / "runs").items() > before.items()
    assert [start["from_epoch"] for start in read(wanted[1], tmp_path / "killed").provenance] == [0, 2]
    finish(wanted, tmp_path / "alone")
    require_alike(read(wanted[1], tmp_path / "killed"), read(wanted[1], tmp_path / "alone"))


def test_a_seed_that_has_come_further_goes_on_alone(monkeypatch, tmp_path):
    wanted, results = jobs(GOSSIP, seeds=(0, 1)), tmp_path / "killed"
    leave_checkpoints(wanted[0], results, monkeypatch)
    finish(wanted, results, together=2)
    finish(wanted, tmp_path / "alone")
    for job, starts in zip(wanted, ([0, 2], [0]), strict=True):
        assert outcome_of(job, results) == outcome_of(job, tmp_path / "alone")
        assert [start["from_epoch"] for start in read(job, results).provenance] == starts


def test_a_damaged_record_stops_before_anything_is_trained(monkeypatch, tmp_path):
    wanted = jobs(ROWS["no_communication"], GOSSIP.replace("A", "B"))
    finish(wanted[1:], tmp_path)
    damage(wanted[1].record_path(tmp_path))
    before = contents(tmp_path)
    forbid_training(monkeypatch)
    with pytest.raises(ValueError, match=r"elastic_gossip.*seed-0\.json is damaged; move it"):
        finish(wanted, tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(("damaged", "from_epoch"), [((2,), 1), ((1, 2), 0)])
def test_a_damaged_checkpoint_is_named_and_the_one_before_taken(
    damaged, from_epoch, plain_outcome, monkeypatch, tmp_path
):
    (job,) = jobs(GOSSIP)
    leave_checkpoints(job, tmp_path, monkeypatch)
    paths = [job.checkpoints(tmp_path).path / str(epoch) for epoch in damaged]
    for path in paths:
        damage(max(path.rglob("*"), key=lambda file: file.stat().st_size * file.is_file()))
    shown = finish([job], tmp_path)
    for path in paths:
        assert f"warning: the checkpoint {path} is damaged" in shown.replace("\n", "")
    assert outcome_of(job, tmp_path) == plain_outcome(job)
    assert [start["from_epoch"] for start in read(job, tmp_path).provenance] == [0, from_epoch][
        from_epoch == 0 :
    ]


def test_without_its_last_checkpoint_a_run_goes_on_from_the_one_before(
    plain_outcome, monkeypatch, tmp_path
):
    (job,) = jobs(GOSSIP)
    leave_checkpoints(job, tmp_path, monkeypatch)
    shutil.rmtree(job.checkpoints(tmp_path).path / "2")
    finish([job], tmp_path)
    assert outcome_of(job, tmp_path) == plain_outcome(job)
    assert [start["from_epoch"] for start in read(job, tmp_path).provenance] == [0, 1]


def test_a_record_of_other_settings_is_refused_and_left_alone(monkeypatch, tmp_path):
    finish(jobs(GOSSIP), tmp_path)
    before = contents(tmp_path)
    forbid_training(monkeypatch)
    with pytest.raises(ValueError, match=r"learning_rate 0\.001 there, 0\.1 here"):
        finish(jobs(GOSSIP, settings=SETTINGS + "\nlearning_rate = 0.1"), tmp_path)
    assert contents(tmp_path) == before


def test_a_checkpoint_of_other_settings_is_refused_and_left_alone(monkeypatch, tmp_path):
    (job,) = jobs(GOSSIP)
    leave_checkpoints(job, tmp_path, monkeypatch)
    before = contents(tmp_path)
    forbid_training(monkeypatch)
    with pytest.raises(ValueError, match=r"seed-0/2 is of .*: learning_rate 0\.001 there, 0\.1 here"):
        finish(jobs(GOSSIP, settings=SETTINGS + "\nlearning_rate = 0.1"), tmp_path)
    assert contents(tmp_path) == before


def test_a_row_whose_workers_will_never_talk_is_warned_of_once_whatever_its_seeds(tmp_path):
    seldom = 'A = { protocol = "elastic_gossip", period = 28 }'
    often = 'B = { protocol = "elastic_gossip", period = 27 }'
    shown = finish(jobs(seldom, often, seeds=(0, 1)), tmp_path)
    (warning,) = (line for line in shown.splitlines() if line.startswith("warning: "))
    assert warning == (
        "warning: A: --period 28 is beyond the run's 27 updates: no worker will ever talk to another"
    )


def test_of_two_processes_in_one_directory_the_second_is_refused(monkeypatch, tmp_path):
    (job,) = jobs(ROWS["no_communication"])
    refused = []

    def update(*_: Any) -> None:
        with pytest.raises(ValueError, match=r"another process is running into .*; name another"):
            finish([job], tmp_path)
        refused.append(True)

    with monkeypatch.context() as patched:
        patched.setattr(sweep.EpochProgress, "update", update)
        finish([job], tmp_path)
    assert len(refused) == 3
    finish([job], tmp_path)  # the lock is free again


SICK = "A = { learning_rate = 1e30 }"
WELL = 'B = { protocol = "no_communication" }'


def test_a_run_that_diverged_has_no_record_and_the_others_finish(tmp_path):
    wanted = jobs(SICK, WELL, seeds=(0, 1))
    with pytest.raises(Diverged, match="A seed 0, A seed 1 diverged, and has no record; the same"):
        finish(wanted, tmp_path, together=2)
    assert [job.label for job in wanted if job.record(tmp_path) is None] == ["A", "A"]


def test_a_run_that_was_to_continue_has_a_record_that_says_so(tmp_path):
    (job,) = jobs(SICK, on_nan="continue")
    assert "is NaN or infinite since epoch 1" in finish([job], tmp_path)
    assert "nan" in outcome_of(job, tmp_path)
    assert read(job, tmp_path).settings["on_nan"] == "continue"
    (stopped,) = jobs(SICK)
    with pytest.raises(ValueError, match="on_nan 'continue' there, 'stop' here"):
        stopped.record(tmp_path)


def test_what_would_have_been_done_with_the_sick_makes_no_other_run_of_a_healthy_one(
    monkeypatch, tmp_path
):
    (job,) = jobs(WELL, on_nan="isolate")
    finish([job], tmp_path)
    assert read(job, tmp_path).settings["on_nan"] == "stop"
    forbid_training(monkeypatch)
    assert "1 of 1 runs are there already" in finish(jobs(WELL), tmp_path)


def test_of_seeds_that_train_at_once_a_sick_worker_of_one_is_isolated(monkeypatch, tmp_path):
    """And the other seed is to rounding what it is alone."""
    wanted = jobs(WELL, seeds=(0, 1), on_nan="isolate")
    treat = faults.Treatment._of

    def fall_sick(self: Any, journal: Any, epoch: loop.Epoch) -> loop.Epoch:
        if (journal.setup.config.seed, epoch.progress.epoch) == (1, 2):
            return faults._treat(journal, 2, self._say)
        return treat(self, journal, epoch)

    watched = loop.watched_epoch

    def sick_once(setup: Any, progress: run.Progress) -> Any:
        after, sick_from = watched(setup, progress)
        return after, sick_from if progress.isolated else np.array([0, 0, 12, 0])

    monkeypatch.setattr(faults.Treatment, "_of", fall_sick)
    monkeypatch.setattr(loop, "watched_epoch", sick_once)
    shown = finish(wanted, tmp_path / "together", together=2)
    assert "worker 2 turned NaN or infinite at update 12, in epoch 2: isolated" in shown
    healthy, isolated = (read(job, tmp_path / "together") for job in wanted)
    assert (healthy.settings["on_nan"], isolated.settings["on_nan"]) == ("stop", "isolate")
    finish(wanted[:1], tmp_path / "alone")
    require_alike(healthy, read(wanted[0], tmp_path / "alone"))
