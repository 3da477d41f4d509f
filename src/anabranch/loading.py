"""Finding the pipeline in a user's file, which is imported under its own name, so that Spark's workers can too."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path

from anabranch.errors import AnabranchError, PipelineFileError
from anabranch.pipeline import Pipeline


def load_pipeline(file: Path) -> Pipeline:
    """Import a Python file and return the one pipeline it defines; `PipelineFileError` if that is impossible."""
    path = file.absolute()
    if not path.is_file():
        raise PipelineFileError(f"there is no file {file}", hint="name a Python file that defines a pipeline")
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise PipelineFileError(
            f"{file} cannot be imported", hint="the name must end in .py and be a Python identifier before that"
        )
    if path.stem in sys.modules or path.stem in sys.stdlib_module_names:
        raise PipelineFileError(f"{file} has the name of another module", hint="rename the file")
    sys.path.insert(0, str(path.parent))
    try:
        path.read_bytes()
        module = importlib.import_module(path.stem)
    except AnabranchError:
        raise
    except OSError as error:
        raise PipelineFileError(
            f"cannot read {file}: {error.strerror or error}", hint="check the file's permissions"
        ) from error
    except BaseException as error:
        hint = "run it with python to see the whole trace"
        if "SESSION_OR_CONTEXT_NOT_EXISTS" in str(error):
            hint = "there is no Spark yet: make the UDF inside the step, or give its type as an object: DoubleType()"
        raise PipelineFileError(f"{file} failed while it was imported: {_where(path, error)}", hint=hint) from error
    pipelines = {id(value): value for value in vars(module).values() if isinstance(value, Pipeline)}
    if not pipelines:
        raise PipelineFileError(f"{file} defines no pipeline", hint='add pipe = ab.Pipeline("name") and its steps')
    if len(pipelines) > 1:
        names = ", ".join(sorted(repr(pipeline.name) for pipeline in pipelines.values()))
        raise PipelineFileError(f"{file} defines {len(pipelines)} pipelines ({names})", hint="put each in its own file")
    return next(iter(pipelines.values()))


def _where(path: Path, error: BaseException) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    place = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{place}"
