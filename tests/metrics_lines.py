"""Lines of a .jsonl file of metrics, as they are written and as they should not be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VALUES = {"grad_norm": 1.0, "weight_norm": 1.0, "update_norm": 1e-3, "update_ratio": 1e-3}


def entry(step: int) -> dict[str, Any]:
    """What one tracked step of one parameter writes."""
    return {
        "step": step,
        "total_norm": 1.0,
        "clip_coefficient": None,
        "parameters": {"weight": dict(VALUES)},
    }


def write(path: Path, *entries: dict[str, Any]) -> Path:
    """A file of some lines."""
    path.write_text("".join(json.dumps(each) + "\n" for each in entries))
    return path
