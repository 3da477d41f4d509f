"""What is said of a plan before it runs: its class, what decides it, and what each strategy promises."""

import pytest

from anabranch.guarantee.classify import SegmentClass, classify
from anabranch.guarantee.matrix import promise
from anabranch.guarantee.plan_tree import plan_tree
from anabranch.merging import unmergeable
from anabranch.spans import combined, operator_spans
from anabranch.strategies.named import by_name
from plan_cases import CASES, STRATEGIES

pytestmark = pytest.mark.spark
BY_NAME = by_name("log:store")
LETTERS = {"precise": "P", "no-loss (divergent)": "D", "gap": "G", "refused": "x"}


@pytest.fixture(scope="module")
def events(spark, tmp_path_factory):
    names = tmp_path_factory.mktemp("names")
    (names / "names.json").write_text('{"key": "k0", "name": "zero"}\n')
    spark.conf.set("spark.anabranch.test.names", str(names))
    return (
        spark.readStream.format("rate")
        .load()
        .selectExpr(
            "timestamp AS ts",
            "concat('k', value % 3) AS key",
            "value",
            "value / 3D AS x",
            "CAST(value AS DECIMAL(12, 2)) AS d",
            "array(value, value + 1, value + 2) AS items",
        )
    )


@pytest.mark.parametrize("name", CASES)
def test_class_and_promises(spark, events, name):
    """As reasoned beside each plan."""
    case = CASES[name]
    frame = case.build(events)
    analyzed = frame._jdf.queryExecution().analyzed()
    tree = plan_tree(frame)
    spans = operator_spans(spark.sparkContext._jvm, analyzed, tree, case.mode)
    found = classify(tree, spans, catalyst_deterministic=analyzed.deterministic())
    decided = found.decided_by.what if found.decided_by else ""
    told = ""
    for strategy in STRATEGIES:
        refusal = BY_NAME[strategy].refusal(combined(spans), unmergeable(tree))
        told += LETTERS[str(promise(found, BY_NAME[strategy], refusal))]
    assert (str(found.kind), told) == (case.kind, case.promises), found
    assert case.decided_by in decided
    assert (found.kind is SegmentClass.REPEATABLE) == (not found.findings)
