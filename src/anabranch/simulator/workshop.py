"""What makes runs on virtual time: the steps of workshop.py, on a model of Spark instead of a session."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from anabranch.channel.inputs import Gate
from anabranch.choosing import Wanted, newest
from anabranch.simulator.storage import Run
from anabranch.simulator.unit import OPEN, SimUnit
from anabranch.strategies import PassiveStandby
from anabranch.strategies.strategy import WARM_BATCHES, Begin, Takeover, View, merge_end

if TYPE_CHECKING:
    from anabranch.simulator.node import SimNode


class SimExecutor(Executor):
    """Starts things in their own time, one after the other."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self._free_s = 0.0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401
        future: Future[Any] = Future()
        heap = self._node.world.heap
        begin_s = max(0.0, self._free_s - heap.now_s)
        takes_s = heap.chance.uniform(0.2, 3.0)
        self._free_s = heap.now_s + begin_s + takes_s

        def run() -> None:
            try:
                result = fn(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  handed on, as an executor does
                failure = error
                self._node.later(takes_s, lambda: future.set_exception(failure))
            else:
                self._node.later(takes_s, lambda: future.set_result(result))

        self._node.later(begin_s, run)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002  its face
        del wait, cancel_futures


class SimWorkshop:
    """What `Workshop` is to Spark: the same steps, on a model."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self.channels = node.world.channels

    def assemble(self) -> dict[str, Any]:
        """Return what is known of the plans."""
        return {
            name: SimpleNamespace(span=segment.model.span, unmergeable=segment.model.unmergeable)
            for name, segment in self._node.world.segments.items()
        }

    def primary(self, name: str, generation: int, how: Takeover, view: View) -> SimUnit:
        strategy = self._node.setup.strategy(name)
        unit = SimUnit(self._node, name, generation, scratch=False)
        if how.use == "newest" or view.published < 0:
            owner = None if strategy.keeps_state else self._node.name
            after = unit.prepare(partial(self._restored, name), owner=owner)
            merges = view.mergeable and strategy.policy != "shipped"
            at_once = merge_end(after, view.published, view.late) if merges else -1
            gate = Gate(at_once if at_once > after else -1)
        else:
            unit.begin_after(how.after, compare_from=how.compare_from, lost=how.lost)
            gate = Gate(how.at_once, after=how.after)
        unit.start(gate)
        return unit

    def standby(self, name: str, begin: Begin) -> SimUnit:
        unit = SimUnit(self._node, name, None, scratch=begin.scratch)
        if not begin.empty:
            unit.prepare(None, owner=None)
        elif begin.scratch:
            unit.begin_after(max(unit.input_floor(), self.channels[name].last_epoch() - WARM_BATCHES - 2))
        unit.start(OPEN if begin.open else None)
        return unit

    def newest_saved(self, name: str, *, owner: str | None) -> int:
        found = newest(self._node.world.runs[name].values(), Wanted(owner), sure=True)
        return -1 if found is None or found.saved is None else found.saved.epoch

    def _restored(self, name: str, run: Run, again: bool) -> None:  # noqa: FBT001  a callback
        world = self._node.world
        strategy = self._node.setup.strategy(name)
        if isinstance(strategy, PassiveStandby):
            output = world.channels[name] if strategy.policy == "shipped" else None
            world.restored(name, run, output, again=again)
