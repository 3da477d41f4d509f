"""Run many histories: `python -m anabranch.simulator FIRST LAST [--jobs N]`; prints the seeds that broke a promise."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time

from anabranch.simulator.history import Verdict, run

# Not 1, with which Python ends when something went wrong in the simulator itself.
BROKEN = 3
_TELL_EVERY = 10_000


def main() -> int:
    """Run seeds FIRST to LAST; return `BROKEN` if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m anabranch.simulator", description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--until-broken", action="store_true", help="stop at the first broken promise")
    options = parser.parse_args()
    began_s = time.monotonic()
    broken = done = faults = 0
    seeds = range(options.first, options.last)
    with multiprocessing.Pool(options.jobs) as pool:
        for verdict in pool.imap_unordered(run, seeds, chunksize=8):
            done, faults = done + 1, faults + verdict.faults
            if done % _TELL_EVERY == 0:
                sys.stderr.write(f"{done} of {len(seeds)} histories, {broken} broken\n")
            if not verdict.held:
                broken += 1
                sys.stdout.write(json.dumps(_told(verdict)) + "\n")
                sys.stdout.flush()
                if options.until_broken:
                    break
    took_s = time.monotonic() - began_s
    summary = {"histories": done, "faults": faults, "broken": broken, "per_second": round(done / took_s, 1)}
    sys.stdout.write(json.dumps(summary) + "\n")
    return BROKEN if broken else 0


def _told(verdict: Verdict) -> dict[str, object]:
    return {"seed": verdict.seed, "pipeline": verdict.pipeline, "violations": verdict.violations[:3]}


if __name__ == "__main__":
    sys.exit(main())
