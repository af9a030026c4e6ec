"""The section on slow links says what the records say, and tells measured from extrapolated."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from fabricated import write_run

import gossip_jax as gj
from experiments import network
from experiments.links import records as link_records
from experiments.links.records import LinkRecord
from experiments.report import document as report
from experiments.report import links as link_report
from experiments.report.claims import CLAIMS, findings
from experiments.report.requirements import Verdict
from experiments.report.summary import Results
from experiments.tables import rows
from experiments.training.config import Config
from experiments.training.protocols import make_draw
from gossip_jax.protocols import SPECS
from gossip_jax.training import draw_rounds


def record(rate: str, protocol: Any, updates_per_second: float, **changes: Any) -> LinkRecord:
    """A hundred seconds behind a link, in which a worker sent a tenth more than was counted."""
    config = Config(dataset="mnist", protocol=protocol, p=1 / 32).checked()
    made = LinkRecord(
        settings=link_records.settings(config, rate, 0.9),
        updates=round(100 * updates_per_second),
        seconds=100.0,
        exchanges=7,
        bytes_counted=[1e6] * 4,
        bytes_sent=[1.1e6] * 4,
        bytes_framed=[1.2e6] * 4,
        samples=[],
        reached=None,
        provenance={},
    )
    return dataclasses.replace(made, **changes)


@pytest.fixture
def records() -> list[LinkRecord]:
    silent = {"bytes_counted": [0.0] * 4, "exchanges": 0}
    return [
        record("100mbit", "no_communication", 20, reached=[500, 25.0], **silent),
        record("100mbit", "all_reduce", 0.7),
        record("100mbit", "elastic_gossip", 8.4),
        record("unlimited", "all_reduce", 10, reached=[350, 35.0], bytes_framed=None),
        record("unlimited", "elastic_gossip", 12),
    ]


def lines(records: list[LinkRecord]) -> dict[tuple[str, str], dict[str, str]]:
    grid = link_report.measured(records)
    return {
        (line[0], line[1]): dict(zip(grid.header[2:], line[2:], strict=True)) for line in grid.lines
    }


def test_rates_are_beside_all_reduce_s_over_links_of_the_same_rate(records):
    line = lines(records)["100mbit", "elastic_gossip p = 1/32"]
    assert (line["updates/s"], line["× All-reduce"]) == ("8.4", "12")
    assert (line["updates"], line["exchanges"]) == ("840", "7")
    assert lines(records)["unlimited", "all_reduce"]["× All-reduce"] == "1"


def test_bytes_sent_are_beside_those_counted(records):
    line = lines(records)["100mbit", "all_reduce"]
    assert (line["MB counted"], line["MB sent"]) == ("1.0", "1.1")
    assert (line["sent"], line["framed"]) == ("+10.0%", "+20.0%")
    assert lines(records)["unlimited", "all_reduce"]["framed"] == ""
    assert lines(records)["100mbit", "no_communication"]["sent"] == ""


def test_a_time_is_measured_or_extrapolated_or_not_known(records):
    times = {where: line["s to 90%"] for where, line in lines(records).items()}
    assert times["unlimited", "all_reduce"] == "35"
    assert times["100mbit", "no_communication"] == "25"
    assert times["100mbit", "all_reduce"] == "≈ 500"  # 350 updates at 0.7 a second
    assert times["100mbit", "elastic_gossip p = 1/32"] == ""  # none got so far


def test_the_figure_has_a_marker_for_each_time_and_open_ones_for_those_extrapolated(records):
    (axes,) = link_report.time_to_accuracy(records).axes
    points: list[Any] = [line for line in axes.lines if line.get_marker() == "o"]
    drawn = {
        (int(x), round(y), line.get_markerfacecolor() == "white")
        for line in points
        for x, y in line.get_xydata()
    }
    assert drawn == {(0, 25, False), (0, 500, True), (1, 35, False)}
    assert [text.get_text() for text in axes.get_xticklabels()] == ["100mbit/s", "unlimited"]


def test_records_survive_being_written(records, tmp_path):
    path = tmp_path / "network" / "one.json"
    link_records.write(path, records[0])
    assert link_records.read_all(tmp_path) == [records[0]]
    assert link_records.read_expected(path, records[0].settings) == records[0]
    with pytest.raises(ValueError, match="rate '100mbit' there, 'unlimited' here"):
        link_records.read_expected(path, records[3].settings)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2}', '{"format": 1}', "\0"])
def test_a_damaged_record_is_named(text, tmp_path):
    path = tmp_path / "one.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"one\.json is damaged, or of another version: move it"):
        link_records.read(path)


@pytest.mark.parametrize(
    ("gossip", "verdict"), [(7.1, Verdict.HOLDS), (6.9, Verdict.FAILS), (None, Verdict.UNDECIDED)]
)
def test_the_fifth_claim_is_decided_by_what_was_measured(gossip, verdict, tmp_path):
    table = rows.load("mnist_protocols")
    for row in table.select(["EG-4-0.031", "AR-4"]):
        write_run(tmp_path, table, row, 0.98)
    measured = {"all_reduce": 0.7} | ({"elastic_gossip": gossip} if gossip else {})
    for protocol, updates_per_second in measured.items():
        one = record("100mbit", protocol, updates_per_second)
        link_records.write(tmp_path / "network" / f"{protocol}.json", one)
    (claim,) = (claim for claim in CLAIMS if claim.number == 5)
    (finding,) = findings(claim, Results(tmp_path, [table]))
    assert finding.verdict is verdict


def test_the_report_has_the_section(records, tmp_path, monkeypatch):
    for number, one in enumerate(records):
        link_records.write(tmp_path / "network" / f"{number}.json", one)
    monkeypatch.setattr(sys, "argv", ["report", "--results", str(tmp_path)])
    report.main()
    text = (tmp_path / "REPORT.md").read_text(encoding="utf-8")
    assert "## Slow links" in text
    assert "| 100mbit | all_reduce | 70 | 0.7 | 1 |" in text
    assert (tmp_path / "figures" / "links-mnist-W4-width1024.png").exists()
    assert (tmp_path / "tables" / "links-mnist-W4-width1024.tex").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rate", "fast"], "--rate must be"),
        (["--workers", "1"], "--workers must be 2 to 64; got 1"),
        (["--accuracy", "1"], "--accuracy must be between 0 and 1; got 1"),
        (["--seconds", "0"], "--seconds must be positive; got 0"),
        (["--p", "1.5"], "--p must be a number in [0, 1]"),
    ],
)
def test_bad_input_ends_in_a_message(arguments, says, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(network, "require_tools", lambda: None)
    monkeypatch.setattr(sys, "argv", ["network", "--out", str(tmp_path), *arguments])
    with pytest.raises(SystemExit) as ended:
        network.main()
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
    assert not list(Path(tmp_path).iterdir())


def all_runs(**settings: Any) -> list[Config]:
    return [Config(**run).checked() for run in network.Options(**settings).runs()]


@pytest.mark.parametrize("protocol", SPECS)
def test_a_protocol_runs_once_for_each_p_where_its_rounds_depend_on_it_and_else_once(protocol):
    runs = all_runs(protocols=(protocol,), p=(0.5, 0.25))
    key = gj.keys.run_key(0)
    drawn = {
        p: draw_rounds(make_draw(Config(protocol=protocol, p=p).checked()), key, 1, 500)
        for p in (0.5, 0.25)
    }
    alike = jax.tree.map(np.array_equal, drawn[0.5], drawn[0.25])
    assert len(runs) == (1 if all(jax.tree.leaves(alike)) else 2)
    options = network.Options()
    assert len({options.path(config, "unlimited") for config in runs}) == len(runs)


@pytest.mark.parametrize(
    ("settings", "depends"),
    [
        ({"protocol": "elastic_gossip"}, True),
        ({"protocol": "elastic_gossip", "peers": "pairing"}, True),
        ({"protocol": "all_reduce"}, False),
        ({"protocol": "dpsgd"}, False),  # on a ring, all neighbours at every update
        ({"protocol": "dpsgd", "graph": "exponential", "routes": "in_turn"}, False),
        ({"protocol": "dpsgd", "graph": "exponential", "routes": "at_random"}, True),
    ],
    ids=str,
)
def test_p_is_in_the_name_of_what_was_measured_where_it_made_a_difference(settings, depends):
    config = Config(p=1 / 32, **settings).checked()
    one = record("100mbit", "all_reduce", 1, settings=link_records.settings(config, "100mbit", 0.9))
    protocol = settings["protocol"]
    assert link_report.label(one) == (f"{protocol} p = 1/32" if depends else protocol)
    name = f"{protocol}-p0.03125-W4" if depends else f"{protocol}-W4"
    assert network.Options().path(config, "100mbit").name == f"{name}-width1024-100mbit.json"


def test_what_is_there_is_not_run_again(monkeypatch, tmp_path, capsys):
    arguments = ["--rate", "10mbit", "--protocols", "all_reduce", "--out", str(tmp_path)]
    path = tmp_path / "network" / "all_reduce-W4-width1024-10mbit.json"
    ran: list[dict[str, Any]] = []

    def run(options: network.Options, rate: str, runs: dict[str, dict[str, Any]]) -> int:
        ran.append(runs)
        link_records.write(path, record("10mbit", "all_reduce", 0.1))
        return 0

    monkeypatch.setattr(network, "require_tools", lambda: None)
    monkeypatch.setattr(network, "_run", run)
    monkeypatch.setattr(sys, "argv", ["network", *arguments])
    network.main()
    network.main()
    assert [list(runs) for runs in ran] == [[str(path)]]
    assert "1 records in" in capsys.readouterr().out
