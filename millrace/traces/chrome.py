"""Chrome's form of a Trace, which Perfetto opens: ranks as processes, queues as tracks.

Written as the Trace Event Format says (Google, "Trace Event Format", 2016): complete events (`X`)
with microseconds, and metadata events (`M`) that name and order processes and threads.
"""

from collections.abc import Iterable
from typing import Any

from millrace.comparison import step_of
from millrace.planner.actors.trace import Trace
from millrace.planner.collectives import COLLECTIVES


def chrome_trace(trace: Trace, counters: Iterable[dict[str, Any]] = ()) -> dict[str, Any]:
    """Document of a trace in Chrome's form; counter events are put behind its own."""
    events: list[dict[str, Any]] = []
    tracks: dict[tuple[int, str], int] = {}
    for lane in trace.lanes:
        name = f"rank {lane.rank} · stage {lane.stage}"
        if lane.represents > 1:
            name += f" (stands for {lane.represents} ranks)"
        events.append(_named("process_name", lane.rank, 0, {"name": name}))
        events.append(_named("process_sort_index", lane.rank, 0, {"sort_index": lane.rank}))
        queues = sorted(set(lane.queues), key=lambda queue: (queue != "compute", queue))
        for track, queue in enumerate(queues):
            tracks[lane.rank, queue] = track
            events.append(_named("thread_name", lane.rank, track, {"name": queue}))
            events.append(_named("thread_sort_index", lane.rank, track, {"sort_index": track}))
    lanes = {lane.rank: lane for lane in trace.lanes}
    for span in trace.spans:
        lane, actor = lanes[span.rank], span.actor
        kind = lane.kinds[actor]
        events.append(
            {
                "ph": "X",
                "name": lane.actors[actor],
                "cat": "communication" if kind in COLLECTIVES else lane.phases[actor],
                "pid": span.rank,
                "tid": tracks[span.rank, lane.queues[actor]],
                "ts": span.start_ns / 1000,
                "dur": (span.end_ns - span.start_ns) / 1000,
                "args": {
                    "kind": kind,
                    "block": lane.blocks[actor],
                    "step": step_of(span, lane),
                    "firing": span.firing,
                },
            }
        )
    events.extend(counters)
    about = {"source": trace.source, "device": trace.device, "plan_digest": trace.plan_digest}
    return {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}


def _named(what: str, process: int, track: int, arguments: dict[str, Any]) -> dict[str, Any]:
    """Metadata event that names or orders a process or a thread."""
    return {"ph": "M", "name": what, "pid": process, "tid": track, "args": arguments}
