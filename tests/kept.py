"""Results that are kept in a file beside their test: whoever changes one sees it, and means it.

``PACELINE_KEEP=1 python -m pytest TEST`` writes them anew.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest

DIGITS = 6


def plain(value):
    """Return a value as JSON holds it: rounded numbers, and None for those not known."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, (bool, int, str, type(None))):
        return value
    return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None


def require_kept_text(file, found):
    """Require that a text is the one in the file."""
    path = Path(file)
    if "PACELINE_KEEP" in os.environ:
        path.write_text(found)
    assert found == path.read_text()


def require_kept(file, name, found, *, rel=1e-4):
    """Require that a result is the one that the file keeps under this name; numbers may differ by this share."""
    path, found = Path(file), plain(found)
    kept = json.loads(path.read_text()) if path.exists() else {}
    if "PACELINE_KEEP" in os.environ:
        rows = [
            f"{json.dumps(key)}: {json.dumps(one, sort_keys=True)}"
            for key, one in sorted({**kept, name: found}.items())
        ]
        path.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    else:
        assert name in kept, f"{path.name} keeps no {name}: PACELINE_KEEP=1 writes it"
        _require_same(kept[name], found, name, rel)


def _require_same(kept, found, where, rel):
    if isinstance(kept, dict):
        assert isinstance(found, dict), where
        assert sorted(kept) == sorted(found), where
        for key, one in kept.items():
            _require_same(one, found[key], f"{where}, {key}", rel)
    elif isinstance(kept, list):
        assert isinstance(found, list), where
        assert len(kept) == len(found), where
        for k, (one, other) in enumerate(zip(kept, found, strict=True)):
            _require_same(one, other, f"{where}, {k}", rel)
    else:
        assert found == (pytest.approx(kept, rel=rel) if isinstance(kept, float) else kept), where
