"""Every decision of Anabranch on a virtual clock, network and disk: seeded histories of faults, without Spark.

What decides is the production code itself: leases and roles, detection, strategies, replicas, pacing, publishing,
shipping, trimming and replay. What is virtual is underneath: time, pings, storage, and a model of Spark's state.
"""
