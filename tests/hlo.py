"""Reads compiled programs: what runs at every update, and what only where a conditional chose it."""

import re
from typing import NamedTuple

COLLECTIVES = re.compile(
    r"(all-reduce|all-gather|all-to-all|reduce-scatter|ragged-all-to-all"
    r"|collective-(permute|broadcast)|send|recv)(-start|-done)?"
)

# What cannot move values between the workers of a stacked array, [W, ...].
WORKER_BY_WORKER = re.compile(
    r"parameter|constant|get-tuple-element|tuple|copy|bitcast|broadcast|convert|compare|select"
    r"|add|subtract|multiply|divide|negate|maximum|minimum|and|or|not"
    r"|conditional|fusion|call|while"  # what these call is looked at by itself
)


class Instruction(NamedTuple):
    """One instruction of a program."""

    opcode: str
    shape: str  # of its result
    line: str


def computations(program: str) -> tuple[dict[str, list[Instruction]], str]:
    """The computations of an HLO text by name, and the name of the one that is run."""
    found: dict[str, list[Instruction]] = {}
    entry = name = ""
    for line in program.splitlines():
        if head := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            name = head[2]
            found[name] = []
            entry = name if head[1] else entry
        elif instruction := re.match(r"\s+(?:ROOT )?%?[\w.\-]+ = (.*?) ([a-z][a-z\-]*)\(", line):
            found[name].append(Instruction(instruction[2], instruction[1], line))
    assert entry, "no ENTRY: this is not the HLO text of a compiled program"
    return found, entry


def unconditional(program: str) -> list[Instruction]:
    """Every instruction that runs whatever the values: reached without passing a conditional."""
    found, entry = computations(program)
    return _reached(found, entry, "conditional")


def turns(program: str) -> list[list[Instruction]]:
    """What runs in each turn of each loop, without loops within it; and what runs in no loop."""
    found, entry = computations(program)
    loops = [i.line for part in found.values() for i in part if i.opcode == "while"]
    bodies = {name for line in loops for name in re.findall(r"body=%?([\w.\-]+)", line)}
    return [_reached(found, name, "while") for name in sorted(bodies | {entry})]


def _reached(found: dict[str, list[Instruction]], start: str, but_for: str) -> list[Instruction]:
    """All instructions from a computation on, and from those it calls, but for one opcode."""
    reached, pending = {start}, [start]
    while pending:
        for instruction in found[pending.pop()]:
            if instruction.opcode != but_for:
                called = set(re.findall(r"%?([\w.\-]+)", instruction.line)) & found.keys() - reached
                reached |= called
                pending += called
    return [instruction for name in sorted(reached) for instruction in found[name]]


def collectives(instructions: list[Instruction]) -> list[Instruction]:
    """Those that talk to another device."""
    return [i for i in instructions if COLLECTIVES.fullmatch(i.opcode)]


def mixing(instructions: list[Instruction], size: int) -> list[Instruction]:
    """Those that could mix the workers of a stacked array: all that know it as more than rows.

    Args:
      instructions: of a program in which nothing but replicas has an extent of `size`.
      size: the number of entries of each worker's replica.
    """

    def has_replicas(line: str) -> bool:
        line = line.split(", metadata=")[0]
        extents = re.findall(r"\d+", " ".join(re.findall(r"\b[a-z]+\d*\[([\d,]*)\]", line)))
        return any(int(extent) and int(extent) % size == 0 for extent in extents)

    return [
        i for i in instructions if has_replicas(i.line) and not WORKER_BY_WORKER.fullmatch(i.opcode)
    ]
