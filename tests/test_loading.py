"""Finding the one pipeline in a user's file; whatever is wrong with the file is said in a sentence."""

import sys
from pathlib import Path

import pytest

from anabranch.errors import PipelineError, PipelineFileError
from anabranch.loading import load_pipeline

GOOD = """
import anabranch as ab
pipe = ab.Pipeline("orders")
same = pipe
lines = pipe.source("lines", ab.generate_words(rows=1))
@pipe.step(lines)
def passes(lines):
    return lines
"""


@pytest.fixture(autouse=True)
def _own_modules(tmp_path, monkeypatch):
    """Each test imports its files into a process that knows none of them, and takes them away again."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def write(directory, text, name="pipeline_under_test.py"):
    path = directory / name
    path.write_text(text)
    return path


def test_the_pipeline_is_found(tmp_path):
    """A file with one pipeline, under whatever names, gives that pipeline, and its functions can be called."""
    pipeline = load_pipeline(write(tmp_path, GOOD))
    assert pipeline.name == "orders"
    assert list(pipeline.graph().steps) == ["passes"]


def test_the_module_can_be_imported_by_its_name(tmp_path):
    """Spark's workers import user functions by reference: the module is known under the file's name."""
    pipeline = load_pipeline(write(tmp_path, GOOD))
    function = pipeline.graph().steps["passes"].function
    assert function.__module__ == "pipeline_under_test"
    assert sys.modules["pipeline_under_test"].pipe is pipeline


def test_a_file_may_import_its_neighbours(tmp_path):
    """The file's own directory comes first on the path."""
    write(tmp_path, "NAME = 'orders'\n", "neighbour_under_test.py")
    text = GOOD.replace('"orders"', "NAME").replace(
        "import anabranch", "from neighbour_under_test import NAME\nimport anabranch", 1
    )
    assert load_pipeline(write(tmp_path, text)).name == "orders"


BAD_FILES = {
    "missing": (lambda d: d / "nowhere.py", "there is no file .*nowhere.py"),
    "a directory": (lambda d: d, "there is no file"),
    "not Python": (lambda d: write(d, GOOD, "pipeline.txt"), r"pipeline\.txt cannot be imported"),
    "no identifier": (lambda d: write(d, GOOD, "my-orders.py"), r"my-orders\.py cannot be imported"),
    "name of a standard module": (lambda d: write(d, GOOD, "statistics.py"), r"statistics\.py has the name of another"),
    "name of a loaded module": (lambda d: write(d, GOOD, "pyarrow.py"), r"pyarrow\.py has the name of another"),
    "no pipeline": (lambda d: write(d, "x = 1\n"), "defines no pipeline"),
    "only the class": (lambda d: write(d, "from anabranch import Pipeline\n"), "defines no pipeline"),
    "two pipelines": (
        lambda d: write(d, GOOD + "other = ab.Pipeline('returns')\n"),
        r"defines 2 pipelines \('orders', 'returns'\)",
    ),
    "syntax error": (lambda d: write(d, "import anabranch\n\ndef (:\n"), r"SyntaxError: .*line 3"),
    "not text": (lambda d: (d / "noise.py").write_bytes(b"\xff\xfe\x00x = 1") and d / "noise.py", r"noise\.py failed"),
    "exception": (lambda d: write(d, "x = 1\ny = x / 0\n"), r"ZeroDivisionError: .*\(line 2\)"),
    "exception in a function": (
        lambda d: write(d, "def ratio():\n    return 1 / 0\n\nratio()\n"),
        r"ZeroDivisionError: .*\(line 2\)",
    ),
    "missing import": (lambda d: write(d, "\nimport no_such_module_here\n"), r"no_such_module_here.*\(line 2\)"),
    "exit": (lambda d: write(d, "raise SystemExit(3)\n"), r"SystemExit: 3 \(line 1\)"),
}


@pytest.mark.parametrize(("make", "says"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_is_named_with_a_hint(tmp_path, make, says):
    """Each error names the file and what is wrong with it, with the line where there is one, and says what to do."""
    path = make(tmp_path)
    with pytest.raises(PipelineFileError, match=says) as caught:
        load_pipeline(path)
    assert path.name in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == 2


def test_an_unreadable_file_is_named(tmp_path, monkeypatch):
    """A file that the system refuses to read is named with the system's reason."""
    path = write(tmp_path, GOOD)

    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(PipelineFileError, match=r"cannot read .*pipeline_under_test\.py: Permission denied") as caught:
        load_pipeline(path)
    assert "permissions" in caught.value.hint


def test_a_mistake_in_the_pipeline_keeps_its_own_words(tmp_path):
    """What the pipeline itself complains about while it is built is not wrapped."""
    path = write(tmp_path, GOOD + "pipe.source('lines', ab.generate_words())\n")
    with pytest.raises(PipelineError, match="'lines' is used twice") as caught:
        load_pipeline(path)
    assert not isinstance(caught.value, PipelineFileError)


def test_a_broken_file_can_be_mended_and_loaded(tmp_path):
    """A failed import leaves no half module behind."""
    path = write(tmp_path, "1 / 0\n")
    with pytest.raises(PipelineFileError):
        load_pipeline(path)
    write(tmp_path, GOOD)
    assert load_pipeline(path).name == "orders"
