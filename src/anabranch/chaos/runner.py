"""One run of chaos, from its start to its verdict: the pipeline runs, faults come, everything heals, oracles judge."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anabranch.chaos import nemeses
from anabranch.chaos.cluster import Cluster
from anabranch.chaos.faults import Strike, chosen, schedule
from anabranch.chaos.history import History
from anabranch.chaos.judging import judge
from anabranch.chaos.means import missing, possible
from anabranch.chaos.protection import protection, stands_by
from anabranch.chaos.recording import Deliveries, Lookout, Recorder
from anabranch.chaos.scene import NotInjected, Scene
from anabranch.chaos.verdict import Course, drawn_sinks, lossy_sinks, verdict
from anabranch.chaos.workload import Workload
from anabranch.elsewhere import input_path, output_path
from anabranch.errors import AnabranchError, PipelineError
from anabranch.launcher import NodeEnded
from anabranch.loading import load_pipeline
from anabranch.node_options import NodeOptions
from anabranch.plans import spark_message
from anabranch.processes import undisturbed
from anabranch.segments import consumers, cut
from anabranch.strategies import Amnesia, PassiveStandby

_READY_S, _END_S = 300.0, 600.0
_SETTLED_EPOCHS = 5
_STANDBYS_S = 60.0
_LOOK_S = 0.1
_ASK_S = 5.0
_RETAINED_EPOCHS = 5
# Inputs are trimmed soon, so that recoveries have no more than they need.
_LEAVE_S = 3.0
# A pipeline that stops because of damage is started again when that is put right; this often.
_MOST_STOPS = 5


@dataclass(frozen=True)
class ChaosOptions:
    """What is run, and what is done to it."""

    file: Path
    scratch: Path
    faults: tuple[str, ...] = ("all",)
    seed: int = 0
    seconds: float = 60.0
    count: int = 5
    nodes: int = 2
    strategy: str | None = None
    master: str = "local[1]"
    settings: dict[str, str] = field(default_factory=dict)


class Chaos:
    """One run. `say` tells a person how it goes."""

    def __init__(self, options: ChaosOptions, say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        self._scratch = options.scratch.absolute()
        if self._scratch.exists() and not (self._scratch.is_dir() and not any(self._scratch.iterdir())):
            raise PipelineError(
                f"{options.scratch} is not an empty directory", hint="choose another --out, or remove it"
            )
        self._graph = load_pipeline(options.file).graph()
        if not self._graph.sinks:
            raise PipelineError("the pipeline has no sink", hint="add one: what is delivered is what is compared")
        self._segments = segments = cut(self._graph)
        store = f"log:{self._scratch / 'stores'}"
        self._strategies = protection(self._graph, segments, store, options)
        self._amnesic = any(isinstance(strategy, Amnesia) for strategy in self._strategies.values())
        wanted = chosen(options.faults)
        lacking = missing(self._graph, [self._strategies.get(name) for name in segments], options.nodes, options.master)
        able, self._unable = possible(wanted, lacking)
        if not able:
            reasons = "; ".join(f"{name}: {why}" for name, why in self._unable.items())
            raise PipelineError(
                f"none of these faults can be injected here ({reasons})", hint="choose others: --faults"
            )
        self._strikes = schedule(able, seed=options.seed, count=options.count, seconds=options.seconds)
        self._node_options = NodeOptions(
            file=options.file.absolute(),
            work=self._scratch / "work",
            master=options.master,
            settings=options.settings,
            strategy=options.strategy,
            session=f"chaos-{options.seed}",
            # Trimming is part of what is tried; but what amnesia says of its gaps is read at the end.
            retain_epochs="all" if self._amnesic else _RETAINED_EPOCHS,
            leave_s=_LEAVE_S,
        )
        self._stops = 0
        self._untaken: dict[str, list[str]] = {}
        self._injected: list[dict[str, Any]] = []
        means = {need for strike in self._strikes for need in strike.fault.needs}
        self._cluster = Cluster(self._node_options, options.nodes, self._scratch, means)
        self._units = list(segments)

    def run(self) -> dict[str, Any]:
        """Run to the verdict."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        try:
            workload = Workload(self._graph, self._scratch, seconds=self._options.seconds, seed=self._options.seed)
        except BaseException:
            shutil.rmtree(self._scratch, ignore_errors=True)  # so that the same --out may be used for the next try
            raise
        self._history = History(self._scratch / "history.jsonl")
        self._history.note(
            "began",
            file=str(self._options.file),
            seed=self._options.seed,
            strategies={name: repr(self._strategies.get(name)) for name in self._units},
            faults=[strike.fault.name for strike in self._strikes],
            unable=self._unable,
        )
        healed = lambda what: self._history.note("healed", what=what)  # noqa: E731
        readers = consumers(self._graph, self._segments)
        kept = [name for name in self._units if isinstance(self._strategies.get(name), PassiveStandby)]
        self._scene = Scene(self._cluster, self._units, list(self._graph.sources), readers, workload, healed, kept)
        self._deliveries = Deliveries([output_path(self._scratch, name) for name in self._graph.sinks])
        self._recorder = Recorder(self._cluster.work_path, self._scratch / "recorded", list(self._graph.sources))
        self._lookout = lookout = Lookout(self._recorder.look, self._deliveries.look)
        lookout.start()
        failed: str | None = None
        try:
            self._cluster.mount()
            self._cluster.start()
            workload.start()
            self._settle()
            workload.ready()
            self._break_things()
            self._finish(workload)
        except (AnabranchError, NodeEnded) as error:
            failed = str(error)
            self._history.note("failed", error=failed)
            self._say(f"failed: {failed}")
        finally:
            with undisturbed(), ExitStack() as stack:
                for tidy in (self._cluster.unmount, lookout.end, self._cluster.end, self._put_all_right):
                    stack.callback(tidy)
        return self._judged(workload, failed)

    def _put_all_right(self) -> None:
        self._scene.put_right(everything=True)

    # The course of a run

    def _look(self) -> bool:
        """Look after the nodes; a pipeline that stopped because of damage goes on when that is put right."""
        missed = self._recorder.missed or self._lookout.failed
        if missed is not None:
            raise AnabranchError(f"it could not be judged: {missed}")
        self._scene.put_right()
        try:
            return self._cluster.poll()
        except NodeEnded as error:
            self._stopped(error)
            return True

    def _stopped(self, error: NodeEnded) -> None:
        self._stops += 1
        self._history.note("stopped", error=error.message, hint=error.hint)
        self._say(f"the pipeline stopped: {error.message}")
        told = f"{error.message} {error.hint}"
        # Names are quoted where a person is told of them: a unit may be called like a word of any sentence.
        excused = any(quoted in told for undo in self._scene.undos for quoted in undo.names)
        if self._stops > _MOST_STOPS or not excused:
            raise error
        self._cluster.end()
        self._scene.put_right(everything=True)
        self._cluster.start()

    def _wait(self, seen: Callable[[], object], timeout_s: float, what: str) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not seen():
            if time.monotonic() > deadline_s:
                raise AnabranchError(f"{what} was not seen within {timeout_s:.0f} s", hint="see the logs in work/logs")
            if not self._look():
                raise AnabranchError(f"the pipeline ended before {what} was seen", hint="see the logs in work/logs")
            time.sleep(_LOOK_S)

    def _settle(self) -> None:
        self._say(f"starting {self._options.nodes} nodes …")
        self._wait(self._cluster.ready, _READY_S, "every node")
        flows = lambda: all(self._cluster.last(name) + 1 >= _SETTLED_EPOCHS for name in self._units)  # noqa: E731
        self._wait(flows, _READY_S, f"{_SETTLED_EPOCHS} epochs")
        deadline_s = time.monotonic() + _STANDBYS_S
        while self._options.nodes > 1 and not self._standbys() and time.monotonic() < deadline_s:
            self._look()
            time.sleep(_LOOK_S)
        self._history.note("ready")

    def _standbys(self) -> bool:
        units = [unit for node in self._cluster.status() for unit in node["units"]]
        wanted = {name for name, strategy in self._strategies.items() if stands_by(strategy)}
        return {unit["unit"] for unit in units if unit["role"] != "primary"} >= wanted

    def _break_things(self) -> None:
        began_s = time.monotonic()
        for strike in self._strikes:
            while time.monotonic() < began_s + strike.at_s:
                self._look()
                time.sleep(_LOOK_S)
            self._strike(strike)
        while time.monotonic() < began_s + self._options.seconds:
            self._look()
            time.sleep(_LOOK_S)

    def _strike(self, strike: Strike) -> None:
        at = time.time()
        try:
            done = nemeses.strike(self._scene, strike)
        except (NotInjected, AnabranchError, OSError) as error:
            # A nemesis may meet what another one broke, or what is just being written.
            if isinstance(error, NodeEnded):
                self._history.note("not injected", at=at, fault=strike.fault.name, why="the pipeline stopped")
                self._stopped(error)
                return
            self._history.note("not injected", at=at, fault=strike.fault.name, why=str(error))
            self._say(f"{strike.fault.name}: not injected, {error}")
        else:
            line = self._history.note("fault", at=at, fault=strike.fault.name, **done)
            self._injected.append(line)
            self._say(f"{strike.fault.name}: {done.get('node') or done.get('nodes') or done.get('what') or ''}")

    def _finish(self, workload: Workload) -> None:
        self._scene.put_right(everything=True)
        workload.finish()
        self._history.note("all given", files=workload.given())
        self._untaken = {name: list(names) for name, names in workload.order.items()}
        self._wait(self._all_taken, _END_S, "all input")
        self._say("all input taken; stopping in order …")
        deadline_s = time.monotonic() + _END_S
        asked_s = 0.0
        while self._look():
            if time.monotonic() > deadline_s:
                raise AnabranchError(
                    f"the pipeline did not end within {_END_S:.0f} s", hint="see the logs in work/logs"
                )
            if time.monotonic() - asked_s > _ASK_S:  # a node that was just starting has not heard it
                asked_s = time.monotonic()
                self._cluster.stop()
            time.sleep(_LOOK_S)
        self._history.note("ended")

    def _all_taken(self) -> bool:
        """Say whether everything that was given is part of an epoch."""
        for source, names in self._untaken.items():
            place = input_path(self._scratch, source)
            while names and self._recorder.took(source, place / names[-1]):
                names.pop()
        return not any(self._untaken.values())

    # The verdict

    def _judged(self, workload: Workload, failed: str | None) -> dict[str, Any]:
        self._note_what_was_seen()
        judgement = None
        if failed is None and self._lookout.failed is not None:
            failed = f"it could not be judged: {self._lookout.failed}"
        if failed is None and not self._recorder.complete():
            failed = "it could not be judged: not all plans of the sources could be copied"
        if failed is None:
            self._say("comparing with the run without faults, and with a batch query …")
            options = self._node_options
            try:
                judgement = judge(self._graph, options, self._scratch, self._recorder.recorded, workload.order)
            except Exception as error:  # noqa: BLE001  what the user's own steps raise in a batch is no verdict, but told
                failed = f"it could not be judged: {type(error).__name__}: {spark_message(error)}"
        line = verdict(self._course(), judgement, failed)
        self._history.note("verdict", **line)
        return line

    def _course(self) -> Course:
        times = {name: self._cluster.delivered(name) for name in self._graph.sinks}
        began_s, last_s = self._history.began_s, self._scene.workload.last_given_s
        return Course(
            strategies=self._strategies,
            seed=self._options.seed,
            injected=self._injected,
            unable=self._unable,
            stops=self._stops,
            delivered={name: {e: at - began_s for e, at in epochs.items()} for name, epochs in times.items()},
            ends_s=None if last_s is None else last_s - began_s,
            rows_after=sum(self._cluster.rows_since(name, self._first_fault_s()) for name in self._graph.sinks),
            rewritten=self._deliveries.rewritten,
            lossy=lossy_sinks(self._graph, self._segments, self._strategies),
            named=self._named,
            drawn=drawn_sinks(self._graph, self._segments, self._cluster.work.promises()),
        )

    def _first_fault_s(self) -> float:
        return self._history.began_s + min((line["at_s"] for line in self._injected), default=float("inf"))

    def _named(self, sink: str, epoch: int) -> bool:
        """Say whether an epoch is marked as missing or incomplete."""
        channel = self._cluster.work.channel(self._graph.sinks[sink].stream)
        manifest = channel.manifest(epoch) if epoch > channel.ledger.floor() else None
        return manifest is not None and (manifest.gap or manifest.incomplete)

    def _note_what_was_seen(self) -> None:
        """Add takeovers and deliveries to the history."""
        try:
            events = self._cluster.work.history()
        except (AnabranchError, OSError):
            events = []
        for event in events:
            if event["kind"] in ("took over", "stepped down", "started", "diverged", "gap"):
                fields = {key: value for key, value in event.items() if key not in ("at", "kind")}
                self._history.note(event["kind"], at=event["at"], **fields)
        for name in self._graph.sinks:
            for epoch, at in sorted(self._cluster.delivered(name).items()):
                self._history.note("delivered", at=at, sink=name, epoch=epoch)
