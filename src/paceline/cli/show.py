"""Tables on a terminal, or JSON for machines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    import pandas as pd

out = Console()
if not out.is_terminal:
    out = Console(width=160)  # not the terminal's width: a table in a file or a log has no window to fit
err = Console(stderr=True)


def print_frames(frames: dict[str, pd.DataFrame], as_json: bool) -> None:
    """Print tables, or one JSON object that holds them under their titles."""
    if as_json:
        print(json.dumps({title: json.loads(frame.to_json(orient="records")) for title, frame in frames.items()}))
        return
    for title, frame in frames.items():
        if frame.empty:
            continue
        print_rows(title, [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")])


def print_rows(title: str, rows: list[dict[str, Any]], as_json: bool = False) -> None:
    """Print rows as a table, or as one JSON list."""
    if as_json:
        print(json.dumps(rows))
        return
    table = Table(title=title, title_justify="left", title_style="bold")
    for key, value in rows[0].items() if rows else ():
        number = isinstance(value, (int, float))
        widest = 0 if number or table.columns else min(24, max(len(str(row[key])) for row in rows))
        table.add_column(key, justify="right" if number else "left", min_width=widest)
    for row in rows:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else escape(str(value)) for value in row.values()))
    out.print(table)
