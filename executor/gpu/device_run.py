"""A run on one device: the steps of its ranks, their times, and what they leave behind."""

from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any

import numpy as np

from millrace.executor.cuda.control import CONTROL_DTYPE
from millrace.executor.cuda.cuda_rank import RankCalls
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.device import DeviceDriver
from millrace.executor.gpu.driver import Collectives, Mark, StreamDriver
from millrace.executor.gpu.input_prefetch import InputPrefetcher
from millrace.executor.gpu.memory import PINNED, DeviceRegions, DeviceValues, device_bytes
from millrace.executor.gpu.memory_use import MemoryUse
from millrace.executor.gpu.watchdog import PATIENCE, Patience, wait_for
from millrace.executor.kernels import RunState
from millrace.executor.recording import Recording, StepDone
from millrace.executor.streams.commands import command_buffer
from millrace.planner.actors.graph import ActorGraph

AHEAD_STEPS = 2  # steps issued and not known to have ended
FIRST_REPLAY = 1  # the step before was fired eagerly, and this one captured
TRACED_STEPS = 3  # last steps of a traced run that is captured: they are fired eagerly
SaveStep = Callable[[int], None]


class DeviceRun:
    """The ranks of one device, ready to train.

    Parameters
    ----------
    device
        The device.
    graph
        The actor graph.
    runs
        State that the kernels of every rank on this device share, by rank.
    collectives
        Carries out meetings with ranks elsewhere; None where there are none.

    Attributes
    ----------
    values
        The registers of every rank, to fill before the first step and to save.

    Raises
    ------
    ExecutorError
        An op has no kernel on a GPU; names it.
    InfeasibleError
        The ranks do not fit on the device.
    """

    def __init__(
        self,
        device: DeviceDriver,
        graph: ActorGraph,
        runs: Mapping[int, RunState],
        collectives: Collectives | None = None,
    ) -> None:
        self._device, self._states_by_rank, self._collectives = device, runs, collectives
        buffer = command_buffer(graph, tuple(runs))
        self.ranks = {rank: RankCalls(graph, rank, buffer, run) for rank, run in runs.items()}
        functions: dict[str, set[str]] = {}
        for calls in self.ranks.values():
            for source, names in calls.functions().items():
                functions.setdefault(source, set()).update(names)
        self.regions = DeviceRegions(device, tuple(self.ranks.values()))
        device.load(functions)
        self.driver = StreamDriver(device, buffer, self.ranks, self.regions, collectives)
        self.values = {
            rank: DeviceValues(calls, self.regions, device) for rank, calls in self.ranks.items()
        }
        self._used_bytes = 0
        self._feeder = InputPrefetcher(device, tuple(self.ranks.values()), self.regions)

    def train(
        self,
        steps: int,
        origin_ns: int,
        *,
        eager: bool = False,
        spans: bool = False,
        save: SaveStep | None = None,
        is_saved: Callable[[int], bool] = lambda step: False,
        step_done: StepDone | None = None,
        patience: Patience = PATIENCE,
    ) -> list[Recording]:
        """Make `steps` steps and return the recording of every rank.

        Parameters
        ----------
        steps
            Number of steps.
        origin_ns
            The origin of the clock (`perf_counter_ns`).
        eager
            Fire actor by actor instead of replaying a captured step.
        spans
            Keep times of firings: of all steps where `eager`, else of the last few, which are then
            fired eagerly.
        save, is_saved
            `save(step)` is called after every step of which `is_saved(step)` holds, with nothing in
            flight.
        step_done
            Called with every step that has ended, totals known.
        patience
            Time that a step may take.

        Raises
        ------
        ExecutorError
            A call fails, or a step does not end; names rank and actor as far as they are known.
        """
        timeline = _Timeline(self._device, self.driver.origin, self.ranks, steps, spans=spans)
        first_replay = min(FIRST_REPLAY, steps - 1)
        events = [self._device.event(timed=True) for _ in range(AHEAD_STEPS + 1)]
        for step in range(steps):
            staged = self._feeder.stage(step)
            self._device.wait(self.driver.origin, staged)
            traced = spans and (eager or step >= steps - TRACED_STEPS)
            self._step(step, timeline, eager=eager or step == 0, traced=traced)
            event = events[step % len(events)]
            self._device.record(event, self.driver.origin)
            self._feeder.used(step, event)
            timeline.issued(event)
            waits = traced or is_saved(step) or step in (first_replay, steps - 1)
            while timeline.under_way > (0 if waits else AHEAD_STEPS - 1):
                limit_s = patience.limit_s(timeline.ends_ns)
                if not wait_for(self._device, timeline.next_end, limit_s):
                    raise self._overdue(timeline, limit_s)
                ended = timeline.ended()
                self._keep_totals(ended)
                if step_done is not None:
                    step_done(ended)
            if step == first_replay:
                self._used_bytes = self._device.total_bytes - self._device.free_bytes()
            if save is not None and is_saved(step):
                save(step)
        return timeline.recordings(origin_ns)

    def _step(self, step: int, timeline: "_Timeline", *, eager: bool, traced: bool) -> None:
        """Issue one step. The first is never captured: it makes whatever is made at first use."""
        if eager or traced:
            timeline.marked(step, self.driver.fire(step, timed=traced))
            return
        if not self.driver.captured:
            self.driver.capture()
        self.driver.replay(step)

    def _overdue(self, timeline: "_Timeline", limit_s: float) -> ExecutorError:
        """Error that tells of a step that does not end; what hangs on the device is ended."""
        step = next(iter(self._states_by_rank.values())).first_step + len(timeline.ends_ns) - 1
        last = [] if self._collectives is None else self._collectives.last_issued()
        hung = self.driver.hung(timeline.next_marks)
        rank, actor = (hung[0][0], hung[0][1]) if hung else (min(self.ranks), None)
        told = [f"step {step} did not end within {limit_s:.3g} s"]
        if hung:
            names = ", ".join(f"`{name}` on stream `{stream}`" for _, name, stream in hung)
            told.append(f"begun and not ended: {names}")
        elif last:
            told.append(f"one of its collectives hangs; issued last: {', '.join(last)}")
        if not hung:
            told.append("--eager --trace FILE tells which actor hangs")
        if last:
            told.append(
                "ranks that it waits for have not come, or have come to another collective: see "
                "where their hosts are (py-spy dump --pid PID)"
            )
        error = ExecutorError("; ".join(told), rank=rank, actor=actor)
        if self._collectives is not None:
            self._collectives.abandon(error)
        return error

    def _keep_totals(self, step: int) -> None:
        """Read what a step left in the history of every rank."""
        self._device.check()
        if self._collectives is not None:
            self._collectives.check()
        for rank, run in self._states_by_rank.items():
            if self.ranks[rank].totals is None:
                continue
            history = self.regions.history(rank)
            loss, count, squares, *_ = history[step % len(history)]
            run.record_totals(step, np.array([loss, count, squares]))

    def memory(self) -> dict[int, MemoryUse]:
        """Memory of every rank by use; of a shared device its share."""
        used = self._device.total_bytes - self._device.free_bytes()
        return {
            rank: MemoryUse(
                regions=device_bytes(calls.sizes),
                host_bytes=sum(calls.sizes[region] for region in PINNED) + calls.sizes["stage"],
                context_bytes=self._device.context_bytes,
                library_bytes=self._device.library_bytes,
                device_used_bytes=used,
                grown_bytes=used - self._used_bytes,
            )
            for rank, calls in self.ranks.items()
        }

    def finish(self) -> None:
        """Read what the control of every rank holds at the end."""
        for rank, run in self._states_by_rank.items():
            control = np.empty(1, CONTROL_DTYPE)
            where = self.regions.address(self.ranks[rank].region_operand("control"))
            self._device.to_host(control.view(np.uint8), where)
            run.record_margin(float(control["margin_bits"].view(np.float32)[0]))


class _Timeline:
    """Times at which steps and firings ended, on the host's clock.

    The device's clock is read as the time between two events; the ends of steps follow from one
    another, so that no difference is long (they are floats of milliseconds).
    """

    def __init__(
        self,
        device: DeviceDriver,
        origin: Any,
        ranks: Mapping[int, RankCalls],
        steps: int,
        *,
        spans: bool,
    ) -> None:
        self._device, self._ranks, self._steps = device, ranks, steps
        self._before = device.event(timed=True)
        device.record(self._before, origin)
        device.synchronize(self._before)
        self.ends_ns = [perf_counter_ns()]  # ends of the steps, behind the run's begin
        self._events: list[Any] = []
        self._marks: dict[int, list[Mark]] = {}
        counts = {
            rank: [actor.firings * steps if spans else 0 for actor in calls.program.actors]
            for rank, calls in ranks.items()
        }
        self._firsts = {rank: np.cumsum([0, *firings]) for rank, firings in counts.items()}
        self._spans = {
            rank: np.full((2, firsts[-1]), -1, np.int64) for rank, firsts in self._firsts.items()
        }

    def marked(self, step: int, marks: list[Mark]) -> None:
        """Take note of the events of a step's firings."""
        if marks:
            self._marks[step] = marks

    def issued(self, event: Any) -> None:
        """Take note that `event` comes at the end of the next step."""
        self._events.append(event)

    @property
    def under_way(self) -> int:
        """Steps that were issued and are not known to have ended."""
        return len(self._events)

    @property
    def next_end(self) -> Any:
        """Event at the end of the next step that ends."""
        return self._events[0]

    @property
    def next_marks(self) -> list[Mark]:
        """Events of the firings of the next step that ends, where there are any."""
        return self._marks.get(len(self.ends_ns) - 1, [])

    def ended(self) -> int:
        """Take note that the next step has ended, and return it."""
        event, step = self._events.pop(0), len(self.ends_ns) - 1
        for mark in self._marks.pop(step, ()):
            self._keep(step, mark)
        self.ends_ns.append(self.ends_ns[-1] + self._device.elapsed_ns(self._before, event))
        self._before = event
        return step

    def _keep(self, step: int, mark: Mark) -> None:
        """Keep the times of one firing, counted from the end of the step before."""
        actor = self._ranks[mark.rank].program.actors[mark.actor]
        position = self._firsts[mark.rank][mark.actor] + step * actor.firings + mark.firing
        for row, event in enumerate((mark.start, mark.end)):
            passed_ns = self._device.elapsed_ns(self._before, event)
            self._spans[mark.rank][row, position] = self.ends_ns[-1] + passed_ns

    def recordings(self, origin_ns: int) -> list[Recording]:
        """Recording of every rank's run; firings without times have -1."""
        if len(self.ends_ns) - 1 != self._steps:
            raise ExecutorError(f"{len(self.ends_ns) - 1} of {self._steps} steps have ended")
        ends = np.asarray(self.ends_ns[1:], np.int64) - origin_ns
        recordings = []
        for rank, spans in self._spans.items():
            starts_ns, ends_ns = np.where(spans < 0, -1, spans - origin_ns)
            recordings.append(
                Recording(rank=rank, step_end_ns=ends, starts_ns=starts_ns, ends_ns=ends_ns)
            )
        return recordings
