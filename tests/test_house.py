"""The rooms of the experiments: what is in one imports from itself and from those before it."""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ["common", "tasks", "cluster", "training", "runs", "tables", "links", "report", "bench"]
FILES = sorted((ROOT / "experiments").rglob("*.py"))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> Iterator[str]:
    """The modules of the project that a file imports, wherever in it."""
    known = {module_of(file) for file in FILES}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield from (name for name in (whole, node.module) if name in known)


def room_of(module: str) -> int:
    """Its number; the commands are in none, and stand on top of all."""
    parts = module.split(".")
    return ROOMS.index(parts[1]) if len(parts) > 1 and parts[1] in ROOMS else len(ROOMS)


def test_every_folder_is_a_room():
    folders = {path.parent.name for path in FILES} - {"experiments"}
    assert folders == set(ROOMS)


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_no_import_runs_up(path):
    upward = [name for name in imported(path) if room_of(name) > room_of(module_of(path))]
    assert not [name for name in upward if name != "experiments"]


def test_there_is_no_circle():
    graph = {module_of(path): set(imported(path)) - {"experiments"} for path in FILES}
    assert list(graphlib.TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("path", sorted((ROOT / "gossip_jax").rglob("*.py")), ids=module_of)
def test_the_library_does_not_know_the_experiments(path):
    assert not list(imported(path))


def test_the_checker_sees_an_import_within_a_function(tmp_path):
    path = tmp_path / "file.py"
    path.write_text("def f():\n    from experiments.report import claims\n")
    assert "experiments.report.claims" in list(imported(path))
    assert room_of("experiments.report.claims") > room_of("experiments.tables.rows")
