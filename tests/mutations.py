"""Damage to text, bytes and JSON, drawn from a seeded generator."""

import json
from typing import Any

import numpy as np

ODD_VALUES = (None, True, -1, 0, 1, 0.5, 2**31, 10**30, -(10**30), 1e308, 1e400, float("nan"), "", "é")
ODD_VALUES += ("\udcff", "../..", "/", "x" * 5_000, [], [1], [-1, None], {}, {"a": {}}, [[[[]]]])


def mutated_bytes(rng: np.random.Generator, content: bytes) -> bytes:
    """Cut, or with bytes changed, put in, taken out or repeated."""
    kind, at = rng.integers(5), int(rng.integers(len(content) + 1))
    some = rng.bytes(int(rng.integers(1, 20)))
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + some + content[at + len(some) :]
    if kind == 2:
        return content[:at] + some + content[at:]
    if kind == 3:
        return content[:at] + content[at + len(some) :]
    return content[:at] + content[: int(rng.integers(200))] + content[at:]


def mutated_json(rng: np.random.Generator, content: bytes) -> bytes:
    """With an odd value somewhere, a key less, or one too many."""
    tree = json.loads(content)
    node = tree
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = keys[rng.integers(len(keys))]
        if isinstance(node[key], (dict, list)) and node[key] and rng.random() < 0.7:
            node = node[key]
            continue
        break
    if rng.random() < 0.2:
        del node[key]
    elif rng.random() < 0.1 and isinstance(node, dict):
        node["odd"] = _odd(rng)
    else:
        node[key] = _odd(rng)
    return json.dumps(tree).encode()


def mutated(rng: np.random.Generator, content: bytes) -> bytes:
    """Of a JSON file: in its structure, or in its bytes."""
    return (mutated_json if rng.random() < 0.7 else mutated_bytes)(rng, content)


def _odd(rng: np.random.Generator) -> Any:
    return ODD_VALUES[rng.integers(len(ODD_VALUES))]
