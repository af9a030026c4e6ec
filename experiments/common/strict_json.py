"""JSON that every reader takes: no NaN, no infinity."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def dumps(content: Any, indent: int | None = None) -> str:
    """As `json.dumps`: a path becomes a string, a NaN or an infinity null."""
    return json.dumps(_plain(content), indent=indent, allow_nan=False)


def differences(found: Mapping[str, Any], expected: Mapping[str, Any], where: str) -> list[str]:
    """What two objects of JSON have otherwise than each other, in words; `where` the second one is."""
    return [
        f"{key} {found.get(key, 'not set')!r} there, {expected.get(key, 'not set')!r} {where}"
        for key in sorted({*found, *expected})
        if found.get(key, ...) != expected.get(key, ...)
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
