"""A task of one's own: a regression goes through train, table and report, by its registration alone."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments import network
from experiments.runs import records
from experiments.tables import rows
from experiments.tasks.classification import ACCURACY
from experiments.tasks.registry import TASKS
from experiments.tasks.task import Metric
from experiments.training.config import Config
from experiments.training.results import EpochMetrics, Result

ROOT = Path(__file__).parents[1]

# What its author writes: the task, and its name among the others. The rest is what anybody calls.
REGRESSION = """
import sys
import jax, jax.numpy as jnp, numpy as np
from experiments.tasks.data import Dataset
from experiments.tasks.registry import TASKS
from experiments.tasks.task import Learner, Metric, Task

OPTIMUM = np.array([1.0, -2.0, 0.5], np.float32)

def load(data_dir):
    x = np.random.default_rng(0).normal(size=(600, 3)).astype(np.float32)
    y = x @ OPTIMUM
    return Dataset({"x": x[:500], "y": y[:500]}, {"x": x[500:], "y": y[500:]}, num_validation=100)

def make(dataset, width):
    def error(params, examples):
        return (examples["x"] @ params - examples["y"]) ** 2
    def init(key):
        return jnp.full(dataset.train["x"].shape[1], float(width)), {}
    def loss(params, model_state, batch, key):
        return error(params, batch).mean(), model_state
    def score(params, model_state, examples):
        distance = jnp.linalg.norm(params - OPTIMUM)
        return {"distance": distance, "squared_error": error(params, examples).sum()}
    return Learner(init, loss, score)

TASKS["line"] = Task(
    name="line",
    metrics=(
        Metric(name="distance", label="distance to the optimum", is_higher_better=False),
        Metric(name="squared_error", label="squared error", is_higher_better=False, is_mean=True),
    ),
    models=("linear",),
    load=load,
    make=make,
    options=("width",),
)

from pathlib import Path
from experiments import table, train
from experiments.report import document
from experiments.tables import rows

rows.DIRECTORY = Path("tables")

def call(main, command):
    sys.argv = command.split()
    main()

call(train.main, "train --dataset line --width 4 --epochs 3 --learning-rate 0.05 --momentum 0.5 "
    "--backend vmap --batch-size 40 --out run")
call(table.main, "table lines --seeds 2 --backend vmap --out results")
call(document.main, "report --results results")
"""

TABLE = """
title = "Lines"
group = "lines"

[settings]
dataset = "line"
model = "linear"
width = 4
epochs = 2
batch_size = 40
learning_rate = 0.05
momentum = 0.5

[rows]
"EG" = { protocol = "elastic_gossip", p = 0.125, published = { rank0 = 3.5 } }
"AR" = { protocol = "all_reduce" }
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A directory in which the commands were called."""
    place = tmp_path_factory.mktemp("own")
    (place / "tables").mkdir()
    (place / "tables" / "lines.toml").write_text(TABLE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", REGRESSION],
        cwd=place,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (place / "shown").write_text(done.stdout, encoding="utf-8")
    return place


def test_a_regression_is_trained_and_its_record_has_its_own_figures(place):
    result = json.loads((place / "run" / "result.json").read_text())["result"]
    assert not [name for name in result if "accuracy" in name]
    assert len(result["worker_distance"]) == 4
    assert result["rank0_distance"] == result["worker_distance"][0] < 1
    assert result["rank0_squared_error"] < 1
    lines = [json.loads(line) for line in (place / "run" / "metrics.jsonl").read_text().splitlines()]
    distances = [line["validation_distance_mean"] for line in lines]
    assert distances == sorted(distances, reverse=True)
    shown = (place / "shown").read_text()
    assert f"validation {distances[-1]:.4g}" in shown
    assert "Test distance to the optimum of worker 0" in shown


def test_a_mean_is_over_examples_and_another_metric_is_taken_as_it_is(place):
    """Of standard normal inputs, the mean squared error is about the square of the distance."""
    result = json.loads((place / "run" / "result.json").read_text())["result"]
    squares = np.square(result["worker_distance"])
    np.testing.assert_allclose(result["worker_squared_error"], squares, rtol=0.7)


def test_the_lowest_is_the_best_checkpoint_where_lower_is_better(place):
    kept = sorted(int(path.name) for path in (place / "run" / "checkpoints").iterdir())
    assert kept == [2, 3]  # epoch 1, which has the highest distance, is not kept as the best
    assert Metric(name="d", label="d", is_higher_better=False).best([3, 1, 2]) == 1
    assert ACCURACY.best([3, 1, 2]) == 3


def test_a_regression_is_reported_in_its_own_words(place):
    report = (place / "results" / "REPORT.md").read_text(encoding="utf-8")
    assert "Test distance to the optimum, after the last update" in report
    assert "Validation distance to the optimum over updates" in report
    assert "accuracy" not in report
    paths = (place / "results" / "runs" / "lines").glob("all_reduce*/seed-*.json")
    found = [records.read(path) for path in paths]
    mean = np.mean([one.result.scores["rank0_distance"] for one in found])
    assert len(found) == 2
    assert f"| {mean:.4g} ± " in report
    (figure,) = (place / "results" / "figures").glob("*-distance.png")
    assert figure.stat().st_size > 1_000
    assert list((place / "results" / "figures").glob("*-consensus.png"))


def test_figures_are_written_by_name_and_read_again():
    scores = {"validation_bits_a_byte_mean": 2.0, "validation_loss_mean": 5.0}
    metrics = EpochMetrics(1, 9, 2.0, scores, 0.1, 3, 1.0, 0.5)
    assert metrics.flat()["validation_bits_a_byte_mean"] == 2
    assert EpochMetrics.of(metrics.flat()) == metrics
    result = Result({"aggregate_bits_a_byte": 1.5}, 0.1, 3, 1.0, 0.5, 9, 4.0)
    assert result.flat()["aggregate_bits_a_byte"] == 1.5
    assert Result.of(result.flat()) == result
    with pytest.raises(KeyError):
        Result.of({"aggregate_bits_a_byte": 1.5})


DISTANCE = Metric(name="distance", label="distance to the optimum", is_higher_better=False)


@pytest.fixture
def digits_by_distance(monkeypatch):
    """The digits are learnt by another model, and scored by a distance."""
    task = dataclasses.replace(TASKS["digits"], metrics=(DISTANCE,), models=("linear",))
    monkeypatch.setitem(TASKS, "digits", task)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('A = { dataset = "digits" }\nB = {}', "accuracy and distance to the optimum"),
        ('A = { dataset = "digits", published = { rank0 = inf } }', "must be a finite number"),
        ("A = { published = { rank0 = 3.5 } }", r"in \[0, 1\]"),
    ],
)
def test_a_table_is_scored_by_one_metric_and_published_figures_are_of_it(
    lines, said, digits_by_distance
):
    head = 'title = "T"\ngroup = "g"\n[settings]\ndataset = "mnist"\n[rows]\n'
    with pytest.raises(ValueError, match=said):
        rows.parse("t", head + lines)
    rows.parse("t", head + 'A = { dataset = "digits", published = { rank0 = 3.5 } }')


def test_a_model_of_another_task_is_refused_with_those_that_can_learn_this_one(digits_by_distance):
    assert Config(dataset="digits").checked().model == "linear"
    assert Config(dataset="mnist").checked().model == "mlp"
    with pytest.raises(ValueError, match="--model must be linear with --dataset digits; got mlp"):
        Config(dataset="digits", model="mlp").checked()


def test_the_network_measures_the_time_to_an_accuracy_of_tasks_that_have_one(digits_by_distance):
    network.Options().check()
    with pytest.raises(ValueError, match="--dataset must be scored by accuracy; got digits"):
        network.Options(dataset="digits").check()
