"""The process of a node: `python -m anabranch.node_process OPTIONS`, started by the launcher.

The options are one JSON object. An error that ends the node is left in `nodes/NAME.error.json` for whoever started it;
the exit code says whether starting it again makes sense.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from anabranch.durable import write_atomic
from anabranch.errors import AnabranchError
from anabranch.node import Node
from anabranch.node_options import NodeOptions
from anabranch.plans import spark_message

#: The node broke in a way that starting it again may heal, such as the loss of its JVM.
EXIT_CRASHED = 70
#: Someone ended this node alone; it is started again as if it had died.
EXIT_TERMINATED = 128 + signal.SIGTERM
_PATHS = ("file", "work", "elsewhere")


def encode_options(options: NodeOptions) -> str:
    """Return the argument for a new process."""
    return json.dumps(asdict(options), default=str)


def decode_options(text: str) -> NodeOptions:
    """Read the argument."""
    fields: dict[str, Any] = json.loads(text)
    paths = {name: Path(fields[name]) for name in _PATHS if fields[name] is not None}
    return NodeOptions(**{**fields, **paths})


def error_path(work: Path, name: str) -> Path:
    """Return where a node leaves the error that ended it."""
    return work / "nodes" / f"{name}.error.json"


def main() -> int:
    """Run a node; return its exit code."""
    options = decode_options(sys.argv[1])
    try:
        node = Node(options)
        node.run()
    except AnabranchError as error:
        _leave(options, error.message, error.hint, error.exit_code)
        return error.exit_code
    except Exception as error:  # noqa: BLE001  whatever it is, the launcher must hear of it
        _leave(options, f"{type(error).__name__}: {spark_message(error)}", "", EXIT_CRASHED)
        return EXIT_CRASHED
    return EXIT_TERMINATED if node.terminated else 0


def _leave(options: NodeOptions, message: str, hint: str, exit_code: int) -> None:
    trace = traceback.format_exc()
    sys.stderr.write(trace)
    if options.work.is_dir():
        (options.work / "nodes").mkdir(exist_ok=True)
        record = {"message": message, "hint": hint, "exit_code": exit_code, "trace": trace}
        write_atomic(error_path(options.work, options.name), json.dumps(record).encode())


if __name__ == "__main__":
    code = main()
    with contextlib.suppress(OSError, ValueError):  # nobody may be left to read
        sys.stdout.flush()
        sys.stderr.flush()
    # Py4J leaves threads behind that would hold a normal exit; everything durable is already on disk.
    os._exit(code)
