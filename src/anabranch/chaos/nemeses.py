"""Faults of processes, of moments and of the input, carried out for real. Each returns what it did."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from anabranch.chaos import damage, machines
from anabranch.chaos.faults import Strike
from anabranch.chaos.scene import NotInjected, Scene, parts_of, told
from anabranch.leading import PACER
from anabranch.processes import kill_session, of_session
from anabranch.work import Announcement

Done = dict[str, Any]
_PAUSES_S = (1.0, 3.0, 8.0)


def strike(scene: Scene, fault: Strike) -> Done:
    """Carry out a fault; return what was done. `NotInjected` if there was nothing to do it to."""
    return NEMESES[fault.fault.name](scene, random.Random(fault.seed))


def _killed(node: Announcement) -> None:
    """Kill a node; `NotInjected` if nobody was there to be killed."""
    if not kill_session(node.pid):
        raise NotInjected(f"{node.name} was gone already")


def _signal(pids: Iterable[int], sent: signal.Signals) -> int:
    """Send a signal; return how many processes were there to take it."""
    taken = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sent)
            taken += 1
    if not taken:
        raise NotInjected("the process was gone already")
    return taken


# Processes


def _kill(scene: Scene, _: random.Random) -> Done:
    leader = scene.leader()
    _killed(leader)
    return {"did": "SIGKILL", **told(leader)}


def _kill_standby(scene: Scene, chance: random.Random) -> Done:
    node = scene.standby(chance)
    _killed(node)
    return {"did": "SIGKILL", **told(node)}


def _kill_driver(scene: Scene, _: random.Random) -> Done:
    leader = scene.leader()
    _signal([leader.pid], signal.SIGKILL)
    return {"did": "SIGKILL of the driver", **told(leader)}


def _kill_jvm(scene: Scene, _: random.Random) -> Done:
    leader = scene.leader()
    _signal(parts_of(leader).jvms, signal.SIGKILL)
    return {"did": "SIGKILL of the JVM", **told(leader)}


def _kill_executors(scene: Scene, _: random.Random) -> Done:
    leader = scene.leader()
    killed = _signal(parts_of(leader).executors, signal.SIGKILL)
    return {"did": f"SIGKILL of {killed} executors", **told(leader)}


def _kill_workers(scene: Scene, _: random.Random) -> Done:
    leader = scene.leader()
    killed = _signal(parts_of(leader).workers, signal.SIGKILL)
    return {"did": f"SIGKILL of {killed} Python workers", **told(leader)}


def _kill_but_one(scene: Scene, chance: random.Random) -> Done:
    living = scene.cluster.living()
    if len(living) <= 1:
        raise NotInjected("only one node is there")
    spared = chance.choice(living)
    killed = [node.name for node in living if node.pid != spared.pid and kill_session(node.pid)]
    if not killed:
        raise NotInjected("the other nodes were gone already")
    return {"did": "SIGKILL", "nodes": killed}


def _kill_all(scene: Scene, _: random.Random) -> Done:
    killed = [node.name for node in scene.cluster.living() if kill_session(node.pid)]
    if not killed:
        raise NotInjected("no node is there")
    return {"did": "SIGKILL", "nodes": killed}


def _pause_node(scene: Scene, chance: random.Random) -> Done:
    leader = scene.leader()
    return _pause(scene, chance, told(leader), parts_of(leader).all)


def _pause_jvm(scene: Scene, chance: random.Random) -> Done:
    leader = scene.leader()
    return _pause(scene, chance, {**told(leader), "of": "JVM"}, parts_of(leader).jvms)


def _pause_driver(scene: Scene, chance: random.Random) -> Done:
    leader = scene.leader()
    return _pause(scene, chance, {**told(leader), "of": "driver"}, [leader.pid])


def _pause_workers(scene: Scene, chance: random.Random) -> Done:
    leader = scene.leader()
    return _pause(scene, chance, {**told(leader), "of": "workers"}, parts_of(leader).workers)


def _pause_executors(scene: Scene, chance: random.Random) -> Done:
    leader = scene.leader()
    return _pause(scene, chance, {**told(leader), "of": "executors"}, parts_of(leader).executors)


def _pause_all(scene: Scene, chance: random.Random) -> Done:
    living = scene.cluster.living()
    pids = [pid for node in living for pid in parts_of(node).all]
    return _pause(scene, chance, {"node": "all", "nodes": [node.name for node in living]}, pids)


def _pause(scene: Scene, chance: random.Random, whom: Done, pids: list[int]) -> Done:
    seconds = chance.choice(_PAUSES_S)
    _signal(pids, signal.SIGSTOP)

    def resume() -> None:
        with contextlib.suppress(NotInjected):
            _signal(pids, signal.SIGCONT)

    scene.later(seconds, f"SIGCONT of {whom['node']}", resume)
    return {"did": f"SIGSTOP for {seconds:.0f} s", **whom}


# Moments


def _kill_in_start(scene: Scene, chance: random.Random) -> Done:
    """Kill a node, and kill it again while it starts."""
    victim = chance.choice(scene.cluster.living() or [scene.leader()])
    _killed(victim)

    def again() -> int | None:
        for node in scene.cluster.announced():
            if node.name == victim.name and node.pid != victim.pid and any(True for _ in of_session(node.pid)):
                return node.pid
        return None

    with scene.moment(again, f"the start of {victim.name}"):
        pid = again()
        if pid is None or not kill_session(pid):
            raise NotInjected("the node was gone already")
    return {"did": "SIGKILL, and again in its start", "node": victim.name, "pid": pid}


def _kill_in_checkpoint(scene: Scene, _: random.Random) -> Done:
    """Kill the leading node between the offsets that Spark wrote and the commit that it has not."""
    leader = scene.leader()
    with scene.moment(_writing(scene, leader), "a checkpoint on its way"):
        _killed(leader)
    return {"did": "SIGKILL in a checkpoint", **told(leader)}


def _pause_in_checkpoint(scene: Scene, chance: random.Random) -> Done:
    """Pause the leading node there."""
    leader = scene.leader()
    pids = parts_of(leader).all
    with scene.moment(_writing(scene, leader), "a checkpoint on its way"):
        return _pause(scene, chance, {**told(leader), "in": "a checkpoint"}, pids)


def _writing(scene: Scene, leader: Announcement) -> Callable[[], bool]:
    """Say of the newest run of the node that leads whether Spark has written offsets and no commit for them."""
    runs = scene.cluster.work_path / "units" / scene.units[-1] / "runs"

    def writing() -> bool:
        own = [run for run in sorted(runs.glob("r*")) if _text(run / "owner") == leader.name]
        if not own:
            return False
        checkpoint = own[-1] / "checkpoint"
        return _newest(checkpoint / "offsets") > _newest(checkpoint / "commits")

    return writing


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""


def _newest(directory: Path) -> int:
    with contextlib.suppress(OSError):
        return max((int(name) for name in os.listdir(directory) if name.isdigit()), default=-1)
    return -1


def _kill_in_takeover(scene: Scene, _: random.Random) -> Done:
    def kill(first: Announcement, second: Announcement) -> Done:
        _killed(second)
        nodes = [first.name, second.name]
        return {"did": "SIGKILL, and of the node that took over", "nodes": nodes, "pid": second.pid}

    return _in_takeover(scene, kill)


def _pause_in_takeover(scene: Scene, chance: random.Random) -> Done:
    def pause(first: Announcement, second: Announcement) -> Done:
        return _pause(scene, chance, {**told(second), "killed": first.name}, parts_of(second).all)

    return _in_takeover(scene, pause)


def _in_takeover(scene: Scene, act: Callable[[Announcement, Announcement], Done]) -> Done:
    """Kill the leading node, and act as soon as another one has taken over."""
    unit = scene.units[-1]
    first, before = scene.leader(unit), scene.cluster.generation(unit)
    _killed(first)
    with scene.moment(lambda: scene.cluster.generation(unit) > before, "the takeover", 60.0):
        second = scene.cluster.holder(unit)
        if second is None:
            raise NotInjected("the node that took over was gone already")
        return act(first, second)


def _kill_in_regating(scene: Scene, _: random.Random) -> Done:
    unit = scene.units[-1]
    runs = scene.cluster.work_path / "units" / unit / "runs"
    leader, known = scene.leader(unit), set(os.listdir(runs))
    with scene.moment(lambda: set(os.listdir(runs)) - known, "a standby that begins anew", 60.0):
        _killed(leader)
    return {"did": "SIGKILL while the standby began anew", **told(leader)}


def _kill_in_trimming(scene: Scene, _: random.Random) -> Done:
    holder = scene.cluster.holder(PACER)
    if holder is None:
        raise NotInjected("nobody paces")
    names = scene.inner_channels()

    def floors() -> list[int]:
        return [scene.cluster.work.channel(name).ledger.floor() for name in names]

    before = floors()
    with scene.moment(lambda: floors() != before, "a channel being trimmed"):
        _killed(holder)
    return {"did": "SIGKILL while a channel was trimmed", **told(holder)}


# Input


def _duplicate(scene: Scene, chance: random.Random) -> Done:
    return {"did": "input came twice", "what": scene.workload.duplicate(chance)}


def _late(scene: Scene, chance: random.Random) -> Done:
    given = scene.workload.late(chance)
    if given is None:
        raise NotInjected("nothing was held back any more")
    return {"did": "input came late", "what": given}


def _burst(scene: Scene, chance: random.Random) -> Done:
    seconds = chance.choice((2.0, 5.0))
    if not scene.workload.rest():
        scene.workload.burst()
        raise NotInjected("all input has come already")
    scene.later(seconds, "all input at once", scene.workload.burst)
    return {"did": f"no input for {seconds:.0f} s, then all of it"}


NEMESES: dict[str, Callable[[Scene, random.Random], Done]] = {
    "kill": _kill,
    "kill-standby": _kill_standby,
    "kill-driver": _kill_driver,
    "kill-jvm": _kill_jvm,
    "kill-executors": _kill_executors,
    "kill-workers": _kill_workers,
    "kill-but-one": _kill_but_one,
    "kill-all": _kill_all,
    "pause": _pause_node,
    "pause-jvm": _pause_jvm,
    "pause-driver": _pause_driver,
    "pause-executors": _pause_executors,
    "pause-workers": _pause_workers,
    "pause-all": _pause_all,
    "kill-in-start": _kill_in_start,
    "kill-in-checkpoint": _kill_in_checkpoint,
    "kill-in-takeover": _kill_in_takeover,
    "pause-in-checkpoint": _pause_in_checkpoint,
    "pause-in-takeover": _pause_in_takeover,
    "kill-in-regating": _kill_in_regating,
    "kill-in-trimming": _kill_in_trimming,
    "read-only": machines.read_only,
    "full-disk": machines.full_disk,
    "full-node": machines.full_node,
    "slow-disk": machines.slow_disk,
    "clock": machines.clock,
    "cut": machines.cut,
    "deaf": machines.deaf,
    "damage-checkpoint": damage.checkpoint,
    "damage-store": damage.store,
    "damage-part": damage.part,
    "damage-manifest": damage.manifest,
    "duplicate": _duplicate,
    "late": _late,
    "burst": _burst,
}
