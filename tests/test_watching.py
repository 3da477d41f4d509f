"""Following what happens in a work directory."""

from anabranch.watching import News
from anabranch.work import Work


def test_news_are_told_once_and_whole(tmp_path):
    """What was there before is no news, a line that is being written comes later, and damage hides nothing."""
    work = Work.create(tmp_path / "work")
    work.note("old")
    news = News(work)
    assert news.look() == []
    work.note("one", unit="counts")
    assert news.look() == [{"kind": "one", "unit": "counts"}]
    with (work.path / "history.jsonl").open("ab") as history:
        history.write(b'torn\n{"kind": "tw')
        history.flush()
        assert news.look() == []
        history.write(b'o"}\n')
    assert news.look() == [{"kind": "two"}]
    assert News(Work.create(tmp_path / "other")).look() == []
