"""JSON that every reader takes: no NaN, no infinity."""

import json
import math
from pathlib import Path
from typing import Any


def dumps(content: Any, indent: int | None = None) -> str:
    """As `json.dumps`: a path becomes a string, a NaN or an infinity null."""
    return json.dumps(_plain(content), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
