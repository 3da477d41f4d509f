"""Which archive of classes a JVM is given, and which not."""

import os

import pytest

from anabranch.class_archive import archive_path, that_makes, usable, with_archive


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """An archive that is there, in a directory of the user's own."""
    place = tmp_path / "cache"
    place.mkdir(mode=0o700)
    monkeypatch.setenv("ANABRANCH_ARCHIVE", str(place))
    path = archive_path()
    path.write_bytes(b"classes")
    path.chmod(0o400)
    return path


def test_an_archive_is_used_if_it_is_there(archive):
    """Nothing else is changed in the options of the JVM."""
    assert f"-XX:SharedArchiveFile={archive}" in with_archive("-XX:+UseParallelGC").split()
    archive.unlink()
    assert with_archive("-XX:+UseParallelGC") == "-XX:+UseParallelGC"


def test_off_does_without(archive, monkeypatch):
    """Neither used nor made."""
    monkeypatch.setenv("ANABRANCH_ARCHIVE", "off")
    assert archive_path() is None
    assert with_archive("-Xss4m") == "-Xss4m"


def test_another_archive_that_is_asked_for_wins(archive):
    """Whoever names an archive, or makes one, is left alone."""
    for asked in ("-XX:SharedArchiveFile=/mine.jsa", that_makes(archive, "-Xss4m")):
        assert with_archive(asked) == asked


def test_what_others_could_have_written_is_not_used(archive, tmp_path):
    """An archive is code: whoever can write it can run what they like as this user."""
    for place, mode in ((archive, 0o420), (archive, 0o402), (archive.parent, 0o770), (archive.parent, 0o707)):
        before = place.stat().st_mode
        place.chmod(mode)
        assert not usable(archive)
        assert with_archive("") == ""
        place.chmod(before)
    assert usable(archive)
    if os.getuid() == 0:
        os.chown(archive, 12345, 12345)
        assert not usable(archive)
        os.chown(archive, 0, 0)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"other classes")
    archive.unlink()
    archive.symlink_to(elsewhere)
    assert not usable(archive)


def test_an_empty_file_is_no_archive(archive):
    """Java would complain of it at every start."""
    archive.unlink()
    archive.touch()
    assert not usable(archive)


def test_a_path_with_a_blank_is_not_taken_apart(archive, tmp_path, monkeypatch):
    """Spark splits a JVM's options at blanks."""
    place = tmp_path / "a b"
    place.mkdir(mode=0o700)
    monkeypatch.setenv("ANABRANCH_ARCHIVE", str(place))
    archive.rename(archive_path())
    assert usable(archive_path())
    assert with_archive("-Xss4m") == "-Xss4m"


def test_another_java_has_another_archive(archive, tmp_path, monkeypatch):
    """So that two of them do not replace each other's without end."""
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert archive_path() not in (None, archive)


def test_without_java_there_is_nothing_to_prepare(archive, tmp_path, monkeypatch):
    """What is missing is said when Spark is started."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert archive_path() is None
