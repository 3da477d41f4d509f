"""House style as tests: sizes, names, docstrings, import direction, and that documents name what exists.

Each test collects every offence before it fails, so that one run says all there is to mend.
"""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "anabranch"

MOST_FILE_LINES = 400
MOST_FUNCTION_LINES = 70
MOST_DOCSTRING_LINES = 20
MOST_CONSTRUCTOR_PARAMETERS = 6
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"}

# Lowest first. A module may import from its own layer and from those below; DESIGN §10 draws the same picture.
LAYERS = (
    "errors clock durable processes",
    "ledger store",
    (
        "sources sinks channel keeper guarantee pipeline segments settings lease detector roles placement "
        "checkpoint execution merging spans plans failures loading elsewhere strategies takeovers metrics tuples"
    ),
    (
        "unit publishing runs pending choosing releasing session class_archive worker_daemon planner pacing pacer "
        "delivery keeping"
    ),
    "leading upkeep workshop node node_options node_process hosting replicas setup agent peers work assembly presence",
    "oracle launcher reading status watching rebuilding doctor preparation",
    "cli chaos bench testing simulator",
)
LAYER_OF = {name: number for number, names in enumerate(LAYERS) for name in names.split()}
# The package itself, `import anabranch as ab`, re-exports what users touch; whoever uses it that way stands above.
LAYER_OF_PACKAGE = LAYER_OF["unit"]


@cache
def modules():
    """Return every Python file of the repository with its source and syntax tree."""
    paths = [path for place in ("src", "tests", "examples") for path in sorted((ROOT / place).rglob("*.py"))]
    return {path: (text := path.read_text(), ast.parse(text)) for path in paths}


def inside(folder):
    return {path: tree for path, (_, tree) in modules().items() if path.is_relative_to(folder)}


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def at(path, node=None):
    """Name a place as an editor would take it."""
    return f"{path.relative_to(ROOT)}" + (f":{node.lineno}" if node else "")


def none_of(offences):
    assert not offences, "\n" + "\n".join(offences)


def imports(tree):
    """Yield each imported dotted name with its node; `from a import b` counts as `a.b`, which may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{'.' * node.level}{node.module or ''}.{alias.name}", node) for alias in node.names)


def test_files_are_short():
    """A file longer than 400 lines holds two things."""
    lengths = {path: len(text.splitlines()) for path, (text, _) in modules().items()}
    none_of([f"{at(path)}: {lines} lines" for path, lines in lengths.items() if lines > MOST_FILE_LINES])


def test_functions_are_short():
    """A function longer than 70 lines does two things."""
    none_of(
        [
            f"{at(path, node)}: {node.name} has {lines} lines"
            for path, (_, tree) in modules().items()
            for node in functions(tree)
            if (lines := node.end_lineno - node.lineno + 1) > MOST_FUNCTION_LINES
        ]
    )


def test_constructors_are_narrow():
    """A constructor with more than six parameters wants an options dataclass."""
    none_of(
        [
            f"{at(path, node)}: {count} parameters"
            for path, tree in inside(PACKAGE).items()
            for node in functions(tree)
            if node.name == "__init__"
            and (count := len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs) - 1)
            > MOST_CONSTRUCTOR_PARAMETERS
        ]
    )


def test_modules_are_named_for_what_they_hold():
    """No module or folder is a drawer for odds and ends."""
    none_of([at(path) for path in modules() if {path.stem, path.parent.name} & FORBIDDEN_NAMES])


def test_modules_say_what_they_are():
    """Every module that holds anything has a docstring of at most 20 lines."""
    offences = []
    for path, (_, tree) in modules().items():
        lines = len((ast.get_docstring(tree) or "").splitlines())
        if tree.body and not 0 < lines <= MOST_DOCSTRING_LINES:
            offences.append(f"{at(path)}: docstring of {lines} lines")
    none_of(offences)


def test_tests_say_what_holds():
    """Every test function has a docstring."""
    none_of(
        [
            f"{at(path, node)}: {node.name}"
            for folder in (ROOT / "tests", PACKAGE / "testing")
            for path, tree in inside(folder).items()
            for node in functions(tree)
            if node.name.startswith("test_") and not ast.get_docstring(node)
        ]
    )


def test_every_module_has_a_layer():
    """A new module is given its place in the picture before it is imported."""
    names = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in inside(PACKAGE)} - {"__init__"}
    none_of(
        [f"src/anabranch/{name}: add it to LAYERS in {at(Path(__file__))}" for name in sorted(names - set(LAYER_OF))]
    )


def test_imports_point_downward():
    """A module imports from its own layer and those below, by full name; only tests import `testing`."""
    offences = []
    for path, tree in inside(PACKAGE).items():
        importer = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if importer == "__init__":
            continue
        for name, node in imports(tree):
            parts = name.split(".")
            if parts[0] == "":
                offences.append(f"{at(path, node)}: relative import of {name}")
            elif parts[0] == "anabranch":
                imported = parts[1] if len(parts) > 1 else ""
                above = LAYER_OF.get(imported, LAYER_OF_PACKAGE + 1) > LAYER_OF.get(importer, len(LAYERS))
                if importer != "testing" and (above or imported == "testing"):
                    offences.append(f"{at(path, node)}: {importer} may not import {name}")
    none_of(offences)


def test_nothing_is_pickled():
    """No module of ours imports a serialiser that runs code when it reads; what Spark does inside itself is Spark's."""
    banned = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
    none_of(
        [
            f"{at(path, node)}: {name}"
            for path, tree in inside(ROOT / "src").items()
            for name, node in imports(tree)
            if name.split(".")[0] in banned
        ]
    )


def test_tests_do_not_sleep():
    """A test waits for something it can see, with `wait_until`; a sleep is either too short or too long."""
    offences = []
    for folder in (ROOT / "tests", PACKAGE / "testing"):
        for path, tree in inside(folder).items():
            if path == PACKAGE / "testing" / "wait.py":
                continue
            offences += [at(path, node) for name, node in imports(tree) if name == "time.sleep"]
            offences += [
                at(path, node)
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute) and node.attr == "sleep" and ast.unparse(node.value) == "time"
            ]
    none_of(offences)


def documents():
    return [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if path.exists()]


def test_documents_name_what_exists():
    """Every path of this repository that a document cites in backticks is there."""
    cited = re.compile(r"`((?:src|tests|docs|examples|\.ci)/[^`\s]*)`")
    offences = []
    for path in documents():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for name in cited.findall(line):
                if re.search(r"[<>*{}…]", name):
                    continue  # a pattern or a placeholder
                if not (ROOT / re.split(r"::?", name)[0]).exists():
                    offences.append(f"{at(path)}:{number}: {name}")
    none_of(offences)


def test_nothing_names_this_machine():
    """No file carries a path of the machine it was written on, or where that machine gets its packages."""
    # Put together here, so that this file does not name them either.
    machine_path = re.compile(r"""(?:^|[\s"'`(=:,])/(?:""" + "work|root" + r"|home/\w+)/")
    package_source = re.compile("registry" + " host|index" + "-url", re.IGNORECASE)
    folders = ("src", "tests", "docs", "examples", ".ci")
    paths = [path for path in ROOT.iterdir() if path.is_file()]
    paths += [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    offences = []
    for path in sorted(paths):
        if "__pycache__" in path.parts or ".egg-info" in str(path):
            continue
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue  # a picture
        offences += [
            f"{at(path)}:{number}: {line.strip()}"
            for number, line in enumerate(lines, 1)
            if machine_path.search(line) or package_source.search(line)
        ]
    none_of(offences)
