"""`anabranch bench NAME`: the measurements."""

from __future__ import annotations

import typer

app = typer.Typer(help="Measure, side by side with bare Spark.", no_args_is_help=True)
