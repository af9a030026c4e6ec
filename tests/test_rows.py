"""The tables: they are the thesis's, row by row, and a mistake in a file is a message."""

import csv
import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from experiments.tables import rows
from experiments.tables.rows import Row, Table
from experiments.training.config import Config

# Of paper/README.md in the shared material: "MNIST set-up" and "CIFAR-10 set-up".
SET_UP: dict[str, dict[str, Any]] = {
    "mnist": {
        "dataset": "mnist",
        "model": "mlp",
        "augment": False,
        "width": 1024,
        "batch_size": 128,
        "learning_rate": 0.001,
        "momentum": 0.99,
        "halve_after": (),
        "epochs": 100,
        "validation_examples": 8800,
    },
    "cifar10": {
        "dataset": "cifar10",
        "model": "resnet18",
        "augment": True,
        "batch_size": 128,
        "learning_rate": 0.01,
        "momentum": 0.9,
        "halve_after": (15, 30, 40),
        "epochs": 50,
        "validation_examples": 5200,
    },
}
LENGTHS = [
    {},
    {"seed": 1},
    {"epochs": 3},
    {"train_examples": 2560},
    {"epochs": 3, "train_examples": 2560},
]


def all_tables() -> list[Table]:
    return rows.of_the_thesis()


def all_rows() -> list[tuple[Table, Row]]:
    return [(table, row) for table in all_tables() for row in table.rows]


def table_of(*lines: str, settings: str = "") -> str:
    return "\n".join(
        ['title = "A table"', 'group = "a-group"', "[settings]", settings, "[rows]", *lines]
    )


def number(text: str | None) -> float | None:
    return float(text) if text else None


@pytest.fixture
def published(shared) -> dict[str, list[dict[str, str]]]:
    """The lines of the author's tables, by the table's name."""

    def read(path: Path) -> list[dict[str, str]]:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    return {path.stem: read(path) for path in (shared / "paper").glob("*.csv")}


def test_there_is_a_table_for_each_one_of_the_thesis(published):
    assert [table.name for table in all_tables()] == sorted(published, key=NAMES.index)


NAMES = [table.name for table in rows.of_the_thesis()]


@pytest.mark.parametrize("name", NAMES)
def test_a_table_has_the_rows_of_the_thesis_s_in_their_order(name, published):
    table = rows.load(name)
    assert [row.label for row in table.rows] == [line["label"] for line in published[name]]
    for row, line in zip(table.rows, published[name], strict=True):
        config, label = row.run(seed=0), row.label
        # One worker that trains alone has nobody to communicate with.
        assert config.protocol == line["method"].replace("single_worker", "no_communication"), label
        assert config.workers == int(line["workers"]), label
        # With a fixed period τ, every worker initiates contact at every τ-th update.
        has_period = line.get("tau") not in (None, "", "1")
        assert config.period == (int(line["tau"]) if has_period else 1), label
        if has_period:
            assert (config.p, line["p"]) == (1, ""), label
        elif line["p"]:
            assert config.p == float(line["p"]), label
        if line.get("alpha"):
            assert config.alpha == float(line["alpha"]), label
        assert row.published.rank0 == number(line["rank0_accuracy"]), label
        assert row.published.aggregate == number(line["aggregate_accuracy"]), label


@pytest.mark.parametrize(("table", "row"), all_rows(), ids=lambda value: getattr(value, "label", None))
def test_a_row_has_the_thesis_s_set_up(table, row):
    assert {name: getattr(row.run(seed=0), name) for name in SET_UP[table.group]} == SET_UP[table.group]


def test_the_mnist_tables_share_their_equal_runs():
    mnist = [row for table, row in all_rows() if table.group == "mnist"]
    runs = {(row.config.dataset, row.name(row.run(seed=0))) for row in mnist}
    # 20 + 8 + 13 rows; four of the period's table and three of the moving rate's are in the main one.
    assert (len(mnist), len(runs)) == (41, 34)


@pytest.mark.parametrize("length", LENGTHS, ids=str)
def test_runs_have_the_same_name_where_they_have_the_same_settings(length):
    runs = [
        ((table.group, row.name(config)), config.settings())
        for table, row in all_rows()
        for config in [row.run(**{"seed": 0} | length)]
    ]
    for (name, settings), (other_name, other_settings) in itertools.combinations(runs, 2):
        assert (name == other_name) == (settings == other_settings), (name, other_name)


def test_runs_of_other_lengths_have_other_names_and_those_of_other_seeds_the_same():
    for _, row in all_rows():
        names = [row.name(row.run(**{"seed": 0} | length)) for length in LENGTHS]
        assert names[0] == names[1]
        assert len(set(names[1:])) == len(names) - 1


def test_a_row_that_sets_another_setting_has_a_name_of_its_own():
    own = {
        "learning_rate": "0.1",
        "momentum": "0.5",
        "width": "8",
        "batch_size": "64",
        "peers": '"pairing"',
        "variant": '"push"',
        "halve_after": "[1, 2]",
        "augment": "true",
        "validation_examples": "100",
    }
    lines = [f'{key} = {{ protocol = "gossiping_sgd", {key} = {own[key]} }}' for key in own]
    table = rows.parse("t", table_of('plain = { protocol = "gossiping_sgd" }', *lines))
    assert len({row.name(row.run(seed=0)) for row in table.rows}) == 1 + len(own)


def test_a_row_s_settings_come_before_the_table_s():
    text = table_of("A = { p = 1, halve_after = [2] }", "B = {}", settings="p = 0.5\nwidth = 8")
    a, b = rows.parse("t", text).rows
    assert (a.config.p, a.config.width, a.config.halve_after) == (1, 8, (2,))
    assert (b.config.p, b.config.width, b.config.halve_after) == (0.5, 8, ())
    # A whole number is as good as any, and does not make another run of it.
    (same,) = rows.parse("t", table_of("A = { p = 1.0, halve_after = [2] }", settings="width = 8")).rows
    assert a.name(a.config) == same.name(same.config)


def test_every_setting_of_a_run_can_be_set_but_for_those_that_its_length_decides():
    decided = {"seed", "validate_every"}
    for field in dataclasses.fields(Config):
        name = field.name
        if name in Config().settings().keys() - decided:
            with pytest.raises(ValueError, match=rf"row A: {name} must be"):
                rows.parse("t", table_of(f"A = {{ {name} = {{}} }}"))
        else:
            with pytest.raises(ValueError, match=rf"row A: there is no '{name}'"):
                rows.parse("t", table_of(f"A = {{ {name} = {{}} }}"))


ROW = "table t, row A"
MISTAKES = {
    "not TOML": ("title = \n", ["table t", "not TOML", "line 1"]),
    "a row twice": (table_of("A = {}", "A = {}"), ["table t", "not TOML"]),
    "an unknown key": ("titel = 'x'", ["table t", "'titel'", "rows, settings, thesis, title"]),
    "no title": ("group = 'g'\n[rows]", ["table t", "title must be given"]),
    "no group": ("title = 'x'\n[rows]", ["table t", "group must be given"]),
    "no rows": ("title = 'x'\ngroup = 'g'", ["table t", "rows must be given"]),
    "a title that is a number": ("title = 1\ngroup = 'g'\n[rows]", ["table t: title", "string", "1"]),
    "an order in words": (
        "title = 'x'\ngroup = 'g'\norder = 'last'\n[rows]",
        ["table t: order", "a whole number", "'last'"],
    ),
    "an order that is true": (
        "title = 'x'\ngroup = 'g'\norder = true\n[rows]",
        ["table t: order", "a whole number", "True"],
    ),
    "a group that is a path": (
        "title = 'x'\ngroup = '../g'\n[rows]",
        ["table t: group", "a-z, 0-9", "'../g'"],
    ),
    "no row": (table_of(), ["table t", "there must be a row"]),
    "a number beyond all bounds": (table_of(f"A = {{ p = 1{'0' * 400} }}"), [ROW, "too large"]),
    "rows in a list": ("title = 'x'\ngroup = 'g'\nrows = [1]", ["table t: rows", "a table", "[1]"]),
    "a row that is a number": (table_of("A = 4"), [ROW, "a table of settings", "4"]),
    "an unknown setting": (table_of("A = { alhpa = 0.5 }"), [ROW, "'alhpa'", "alpha", "workers"]),
    "one of the table": (
        table_of("A = {}", settings="worker = 4"),
        [ROW + ", settings", "'worker'", "workers"],
    ),
    "a place": (table_of('A = { out = "x" }'), [ROW, "'out'"]),
    "words for a number": (table_of('A = { p = "1/8" }'), [ROW, "p must be a number", "'1/8'"]),
    "a share of a worker": (table_of("A = { workers = 2.5 }"), [ROW, "workers", "whole", "2.5"]),
    "true for a number": (table_of("A = { workers = true }"), [ROW, "workers", "whole", "True"]),
    "a number for true": (table_of("A = { augment = 1 }"), [ROW, "augment", "true or false", "1"]),
    "a number for a list": (table_of("A = { halve_after = 1 }"), [ROW, "halve_after", "list", "1"]),
    "a list of anything": (table_of("A = { halve_after = ['x'] }"), [ROW, "halve_after", "['x']"]),
    "p above 1": (table_of("A = { p = 2.0 }"), [ROW, "--p", "[0, 1]", "2.0"]),
    "p not a number": (table_of("A = { p = nan }"), [ROW, "--p", "[0, 1]", "nan"]),
    "no worker": (table_of("A = { workers = 0 }"), [ROW, "--workers", "1 or more", "0"]),
    "no moving rate": (table_of("A = { alpha = 0 }"), [ROW, "--alpha", "(0, 1]", "0"]),
    "no epoch": (table_of("A = {}", settings="epochs = 0"), [ROW, "--epochs", "1 or more"]),
    "a batch that cannot be divided": (
        table_of("A = { workers = 3 }"),
        [ROW, "--batch-size", "128", "3 workers"],
    ),
    "an unknown protocol": (
        table_of('A = { protocol = "gossip" }'),
        [ROW, "protocol", "'gossip'", "elastic_gossip, gossiping_sgd, elastic_averaging"],
    ),
    "an unknown dataset": (
        table_of("A = {}", settings='dataset = "imagenet"'),
        [ROW, "dataset", "'imagenet'", "digits, mnist"],
    ),
    "an unknown model": (table_of('A = { model = "vgg" }'), [ROW, "model", "'vgg'", "mlp, resnet18"]),
    "an unknown figure": (
        table_of("A = { published = { rank1 = 0.5 } }"),
        [ROW + ", published", "'rank1'", "aggregate, rank0"],
    ),
    "a figure in percent": (
        table_of("A = { published = { rank0 = 98.6 } }"),
        [ROW, "published rank0", "[0, 1]", "98.6"],
    ),
    "a figure in words": (
        table_of('A = { published = { rank0 = "good" } }'),
        [ROW, "published rank0", "[0, 1]", "'good'"],
    ),
    "a figure of nothing": (
        table_of("A = { published = 0.9 }"),
        [ROW, "published", "rank0 and aggregate", "0.9"],
    ),
}


@pytest.mark.parametrize(("text", "words"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_in_a_table_is_named_with_its_place_and_what_is_allowed(text, words):
    with pytest.raises(ValueError, match="table t") as error:
        rows.parse("t", text)
    for word in words:
        assert word in str(error.value)


def test_an_unknown_table_is_named_and_those_there_are():
    with pytest.raises(ValueError, match="'mnist'") as error:
        rows.load("mnist")
    for name in rows.names():
        assert name in str(error.value)


def test_rows_are_selected_by_label_in_the_table_s_order():
    table = rows.load("mnist_protocols")
    assert [row.label for row in table.select(["NC-4", "AR-4"])] == ["AR-4", "NC-4"]
    assert table.select(None) == table.rows
    with pytest.raises(ValueError, match="mnist_protocols has no row 'NC-5'; its rows are AR-4, SW-1"):
        table.select(["AR-4", "NC-5"])


@pytest.mark.parametrize(
    ("length", "flag"),
    [
        ({"epochs": 0}, "--epochs"),
        ({"train_examples": 0}, "--train-examples"),
        ({"seed": -1}, "--seed"),
    ],
    ids=str,
)
def test_a_length_of_nothing_is_refused(length, flag):
    with pytest.raises(ValueError, match=flag):
        rows.load("mnist_protocols").rows[0].run(**{"seed": 0} | length)
