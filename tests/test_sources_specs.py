"""Sources as they are made: from arguments, or again from JSON in any process; what makes no sense is refused."""

import json

import pytest

from anabranch import sources
from anabranch.errors import Corrupt, PipelineError, SourceError
from anabranch.sources.source import Limit

MAKERS = {
    "words": lambda _: sources.generate_words(20_000, vocabulary=50, rows=7, seed=3, start="2026-02-03"),
    "text": lambda directory: sources.read_text(directory, pattern="*.txt"),
    "text, located": lambda directory: sources.read_text(directory).located(),
    "jsonl": lambda directory: sources.read_jsonl(directory, schema="a int"),
    "jsonl, rejects": lambda directory: sources.read_jsonl(directory, schema="a int", malformed="divert").rejects(),
    "csv": lambda directory: sources.read_csv(directory, schema="a int", header=True, delimiter="\t"),
    "csv, rejects": lambda directory: sources.read_csv(directory, schema="a int", malformed="divert").rejects(),
    "parquet": lambda directory: sources.read_parquet(directory, schema="a int"),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_source_is_made_again_from_its_spec(tmp_path, make):
    """A spec goes through JSON and gives an equal source with the same schema."""
    source = make(tmp_path)
    again = sources.from_spec(json.loads(json.dumps(source.spec())))
    assert again == source
    assert again.spec() == source.spec()
    assert again.raw_schema() == source.raw_schema()


@pytest.mark.parametrize(
    "change",
    [{"kind": "kafka"}, {"version": 2}, {"kind": None}, {"colour": "red"}, {"malformed": "ignore"}, {"schema": "a"}],
)
def test_an_unknown_spec_is_refused(tmp_path, change):
    """A spec of another kind or version, or with fields that are not understood, is not guessed at."""
    spec = sources.read_jsonl(tmp_path, schema="a int").spec()
    with pytest.raises(Corrupt) as caught:
        sources.from_spec({**spec, **change})
    assert caught.value.hint


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"schema": "a foo"}, "foo"),
        ({"schema": None}, "schema is None"),
        ({"schema": "a int", "malformed": "drop"}, "malformed is 'drop'"),
        ({"schema": "__anabranch_row int"}, "__anabranch_row"),
    ],
)
@pytest.mark.parametrize("read", [sources.read_jsonl, sources.read_csv])
def test_bad_schemas_and_choices_are_refused_at_once(tmp_path, read, arguments, says):
    """Mistakes in the arguments are found when the source is made, and named."""
    with pytest.raises(PipelineError, match=says):
        read(tmp_path, **arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"schema": "a array<int>"}, "CSV cannot hold"),
        ({"schema": "a int", "delimiter": ""}, "delimiter"),
        ({"schema": "a int", "delimiter": '"'}, "delimiter"),
        ({"schema": "a int", "header": "yes"}, "header"),
    ],
)
def test_bad_csv_arguments_are_refused_at_once(tmp_path, arguments, says):
    """What CSV cannot do is said when the source is made."""
    with pytest.raises(PipelineError, match=says):
        sources.read_csv(tmp_path, **arguments)


def test_a_directory_must_be_a_path():
    """A missing path is a mistake, not the current directory."""
    with pytest.raises(PipelineError, match="directory is ''"):
        sources.read_text("")


@pytest.mark.parametrize("read", [sources.read_jsonl, sources.read_csv])
def test_rejects_exist_only_where_records_are_diverted(tmp_path, read):
    """A source that fails at malformed records has no rejects to read."""
    with pytest.raises(PipelineError, match="has no rejects"):
        read(tmp_path, schema="a int").rejects()


# Directories


def test_a_missing_directory_is_named(tmp_path):
    """A directory that does not exist, or is none, is an error with its path and what to do."""
    with pytest.raises(SourceError, match="absent does not exist") as caught:
        sources.read_text(tmp_path / "absent").check()
    assert "create it" in caught.value.hint
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match="cannot be listed"):
        sources.read_text(tmp_path / "file").check()
    with pytest.raises(SourceError, match="does not exist"):
        sources.read_text(tmp_path / "absent").planner().plan(0.0, Limit(0, 1))


def test_relative_directories_are_meant_from_here(tmp_path, monkeypatch):
    """A relative path is resolved where the source is made, not where it is read."""
    monkeypatch.chdir(tmp_path)
    assert sources.read_text("in").directory == str(tmp_path / "in")


@pytest.mark.parametrize("pattern", ["", "sub/*.txt", None])
def test_bad_patterns_are_refused(tmp_path, pattern):
    """A pattern that cannot match a file name is a mistake."""
    with pytest.raises(PipelineError, match="pattern"):
        sources.read_text(tmp_path, pattern=pattern)
