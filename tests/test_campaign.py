"""What the runs of a campaign of chaos consist of."""

from anabranch.bench.campaign import CampaignOptions, planned
from anabranch.chaos.faults import CATALOGUE


def test_a_campaign_leaves_nothing_out():
    """Every fault, every kind of state with every strategy that takes it; a run is settled by its number."""
    runs = [planned(number, CampaignOptions()) for number in range(200)]
    assert runs == [planned(number, CampaignOptions()) for number in range(200)]
    assert {fault for run in runs for fault in run.faults} == set(CATALOGUE)
    assert len({(run.kind, run.strategy) for run in runs}) == 4 * 11 - 1
    assert all(len(set(run.faults)) == 3 for run in runs)


def test_faults_need_what_they_are_about():
    """A stored version is damaged where something is stored, executors are killed where there are some."""
    for run in (planned(number, CampaignOptions()) for number in range(400)):
        needs = {need for fault in run.faults for need in CATALOGUE[fault].needs}
        assert ("executors" in needs) == run.master.startswith("local-cluster")
        assert "store" not in needs or run.strategy.startswith(("passive", "shipped"))
