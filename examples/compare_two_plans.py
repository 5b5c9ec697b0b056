"""Predict two parallelisations of one model on the same node, and see where their time goes.

Run:     python examples/compare_two_plans.py
Needs:   Millrace alone, and no GPU; takes about ten seconds on two cores.
Prints:  a column for tensor parallelism (tp 8) and one for pipeline parallelism (pp 8): step time,
         its three parts (compute, exposed communication, bubble) and memory; the difference of the
         steps, part by part; and the largest transfers of each plan.
"""

import millrace

shapes = {
    "tp 8": millrace.Pins(tp=8, dp=1, pp=1),
    "pp 8": millrace.Pins(tp=1, dp=1, pp=8),
}

columns: dict[str, dict[str, float]] = {}
transfers: list[str] = []
for name, pins in shapes.items():
    # Pinned degrees are fixed. Schedule, microbatches and recomputation remain free.
    planned = millrace.plan("llama2-7b", "a100-sxm-80gb:8x1", global_batch=16, pins=pins)
    print(f"{name}: {planned}")

    # Every instant of a step is compute, communication that no compute hides, or bubble (waiting).
    # The figures are means over the ranks.
    simulated = millrace.simulate(planned, detailed=True)
    exposed_s = simulated.exposed_communication_s
    bubble_s = simulated.bubble_fraction * simulated.step_time_s
    columns[name] = {
        "step time": simulated.step_time_s,
        "compute": simulated.step_time_s - exposed_s - bubble_s,
        "exposed communication": exposed_s,
        "bubble": bubble_s,
        "memory, GiB": simulated.memory_bytes_max / 2**30,
    }

    # `detailed=True` accounts for the step: the rows behind these totals, largest first.
    assert simulated.account is not None
    for row in simulated.account.communication[:2]:
        transfers.append(
            f"{name}: {row.kind} over {'+'.join(row.axes)}, {row.message_bytes / 1e9:,.1f} GB, "
            f"{row.exposed_ns / 1e9:.2f} s of it exposed"
        )

print(f"\n{'seconds of a step':<24}{'tp 8':>10}{'pp 8':>10}{'tp - pp':>10}")
for part, first in columns["tp 8"].items():
    second = columns["pp 8"][part]
    print(f"{part:<24}{first:>10.2f}{second:>10.2f}{first - second:>+10.2f}")

parts = ("compute", "exposed communication", "bubble")
faster, slower = sorted(columns, key=lambda name: columns[name]["step time"])
saved = {part: columns[slower][part] - columns[faster][part] for part in parts}
print(f"\n{faster} is faster: it saves most in {max(saved, key=saved.__getitem__)}")
print(f"{slower} does best, beside it, in {min(saved, key=saved.__getitem__)}")
print("\n".join(transfers))
