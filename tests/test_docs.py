"""What the documentation says of graphs is what the library computes."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from gossip_jax import graphs

GRAPHS = (Path(__file__).parents[1] / "docs" / "graphs.md").read_text(encoding="utf-8")
ROW = re.compile(r"\| ([a-z]+)(?:, k=(\d))? \| (\d+) \| (\d+) \| ([\d.]+) \| (\d+) \| ([\d.]+) \|")
ROWS = ROW.findall(GRAPHS)
TORI = {8: (2, 4), 16: (4, 4), 25: (5, 5)}


def test_the_table_has_all_families():
    named = {name for name in graphs.__all__ if callable(getattr(graphs, name)) and name.islower()}
    families = named - {
        "from_edges",
        "messages_per_worker",
        "rounds_to_consensus",
        "spectral_gap",
        "matcha",
    }
    assert {name for name, *_ in ROWS} == families
    assert {workers for _, _, workers, *_ in ROWS} == {"8", "16", "25"}


@pytest.mark.parametrize(("name", "k", "workers", "routes", "gap", "rounds", "messages"), ROWS)
def test_a_row_of_the_table_is_what_the_library_computes(
    name, k, workers, routes, gap, rounds, messages
):
    size = int(workers)
    arguments = TORI[size] if name == "torus" else (size, int(k)) if k else (size,)
    graph = getattr(graphs, name)(*arguments)
    assert graph.num_routes == int(routes)
    assert graphs.spectral_gap(graph) == pytest.approx(float(gap), abs=5e-4)
    assert graphs.rounds_to_consensus(graph) == int(rounds)
    assert graphs.messages_per_worker(graph) == pytest.approx(float(messages), abs=5e-3)


def test_the_example_prints_what_it_says():
    example, output = re.findall(r"```(?:python)?\n(.*?)```", GRAPHS, flags=re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "docs/graphs.md", "exec"), {})
    assert printed.getvalue() == output
