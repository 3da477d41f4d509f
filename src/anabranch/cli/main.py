"""The command line: one verb per file, one place where errors become a message, a hint and an exit code."""

from __future__ import annotations

import sys
import traceback

import typer

from anabranch.cli import bench, chaos, doctor, failover, plan, prepare, read, restore, run, status, stop
from anabranch.errors import AnabranchError

app = typer.Typer(
    name="anabranch",
    help="Keep PySpark streaming pipelines flowing through failures.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("run")(run.run)
app.command("status")(status.status)
app.command("read")(read.read)
app.command("stop")(stop.stop)
app.command("failover")(failover.failover)
app.command("restore")(restore.restore)
app.command("doctor")(doctor.doctor)
app.command("plan")(plan.plan)
app.command("chaos")(chaos.chaos)
app.command("prepare")(prepare.prepare)
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Run the command line; exit code 0 only if all went well."""
    trace = "--trace" in sys.argv
    try:
        app()
    except AnabranchError as error:
        if trace:
            sys.stderr.write(getattr(error, "trace", "") or traceback.format_exc())
        sys.stderr.write(f"error: {error.message}\n")
        if error.hint:
            sys.stderr.write(f" hint: {error.hint}\n")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(0)


if __name__ == "__main__":
    main()
