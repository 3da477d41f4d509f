"""Streams whose replicas disagree about order: the tuple-level path (Hwang 2009, §5.3), as steps of Spark.

Replicas that run on their own, over the same rows, give the same rows in another order, cut into other epochs. What
they share is a *punctuation*: a point in event time that no later row of a replica is at or before; it is the replica's
watermark. `read_replicas(…, timestamp=…)` brings the rows of all of them together with their punctuations.

- `first_arrivals` (algorithm 3) passes every row on once, from whichever replica brings it first, without waiting.
- Filters, maps and unions need nothing: each row is for itself.
- `join` (algorithm 4) is Spark's own join of two streams within a time; which row comes first makes no difference.
- Windows in event time (algorithm 5) are Spark's own: `groupBy(window(…))` in append mode gives each window once, when
  the watermark has passed it.
- `in_order` and `count_windows` (algorithm 6) sort, by event time, as far as the watermark has come: only where order
  matters, because it makes rows wait.

All of these stand on one thing: that Spark's watermark is a true punctuation. Spark derives it from the newest event
time, which says nothing of what a slow replica, or a slow input of it, has yet to bring. So punctuations have a
watermark of their own in the plan, and Spark goes by the lowest of all (`multipleWatermarkPolicy`, `min` by default).
`drop_retries` is for producers outside that send again what was not acknowledged (Tanuwidjaja 2015).
"""

from anabranch.tuples.steps import count_windows, drop_retries, first_arrivals, in_order, join

__all__ = ["count_windows", "drop_retries", "first_arrivals", "in_order", "join"]
