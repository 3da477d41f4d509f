"""Writes input for slow_paths.py: latency and load reports of two networks over two minutes.

python examples/make_slow_paths_input.py data/slow_paths
"""

import json
import random
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

START = datetime(2026, 1, 1, tzinfo=UTC)
SERVERS = 20


def main(directory: Path, seconds: int = 120) -> None:
    """Write ten files for each of the four sources."""
    chance = random.Random(1)
    for network in ("east", "west"):
        for kind in ("latency", "load"):
            (directory / f"{kind}_{network}").mkdir(parents=True, exist_ok=True)
        for part in range(10):
            latencies, loads = [], ["ts,server,load"]
            for second in range(part * seconds // 10, (part + 1) * seconds // 10):
                at = (START + timedelta(seconds=second)).isoformat()
                for server in range(SERVERS):
                    name = f"{network}-{server:02d}"
                    loads.append(f"{at},{name},{chance.random():.3f}")
                    report = {"ts": at, "origin": network, "server": name, "latency_s": chance.expovariate(0.4)}
                    latencies.append(json.dumps(report))
            (directory / f"latency_{network}" / f"{part:03d}.jsonl").write_text("\n".join(latencies) + "\n")
            (directory / f"load_{network}" / f"{part:03d}.csv").write_text("\n".join(loads) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
