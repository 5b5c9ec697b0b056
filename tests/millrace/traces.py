"""Small traces by hand: two ranks, each a compute actor and an all_reduce, every step alike."""

from millrace.planner.actors.trace import Lane, Span, Trace

DIGEST = "00112233aabbccdd"


def two_rank_trace(
    source: str,
    *,
    steps: int = 1,
    compute_ns: int = 600,
    wait_ns: int = 300,
    digest: str = DIGEST,
    represents: int = 1,
) -> Trace:
    """Trace whose steps have two firings of `mul` on rank 0 and 1, one `sum`, 100 ns of nothing."""
    step_ns = 2 * compute_ns + wait_ns + 100
    lanes, spans = [], []
    for rank in (0, 1):
        lanes.append(
            Lane(
                rank=rank,
                stage=0,
                actors=("mul", "sum"),
                kinds=("matmul", "all_reduce"),
                phases=("forward", "update"),
                blocks=("h.0", "h.0"),
                queues=("compute", "dp"),
                firings=(2, 1),
                represents=represents,
            )
        )
        for step in range(steps):
            start = step * step_ns
            for firing in (0, 1):
                begin = start + firing * compute_ns
                spans.append(Span(rank, 0, 2 * step + firing, begin, begin + compute_ns))
            spans.append(
                Span(rank, 1, step, start + 2 * compute_ns, start + 2 * compute_ns + wait_ns)
            )
    return Trace(
        source=source,
        plan_digest=digest,
        device="cpu",
        steps=steps,
        lanes=tuple(lanes),
        step_end_ns=tuple(tuple((s + 1) * step_ns for s in range(steps)) for _ in (0, 1)),
        spans=tuple(spans),
    )
