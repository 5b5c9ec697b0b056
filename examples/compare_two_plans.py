"""Predict two parallelisations of one model on the same node, and see where their time goes.

Run:     python examples/compare_two_plans.py
Needs:   Millrace alone, and no GPU; takes about ten seconds on two cores.
Prints:  a column for tensor parallelism (tp 8) and one for pipeline parallelism (pp 8): step time,
         its three parts (compute, exposed communication, bubble) and memory; the difference of the
         steps, part by part; and the largest transfers of each plan.
"""

from millrace import api
from millrace.drawing import headline
from millrace.simulator.account import account_of

cluster = api.with_framework(api.cluster("a100-sxm-80gb:8x1"), "megatron-core")
shapes = {
    "tp 8": {"tp": 8, "dp": 1, "pp": 1},
    "pp 8": {"tp": 1, "dp": 1, "pp": 8},
}

columns: dict[str, dict[str, float]] = {}
transfers: list[str] = []
for name, pins in shapes.items():
    # Pinned degrees are fixed. Schedule, microbatches and recomputation remain free.
    plan = api.search("llama2-7b", cluster, global_batch=64, precision="bf16", pins=pins)
    print(f"{name}: {headline(plan)}")

    # Every instant of a step is compute, communication that no compute hides, or bubble (waiting).
    # The figures are means over the ranks, in nanoseconds.
    prediction = api.simulate(plan, detailed=True)
    exposed, bubble = (
        prediction.exposed_communication_ns,
        prediction.bubble_fraction * prediction.step_time_ns,
    )
    columns[name] = {
        "step time": prediction.step_time_ns / 1e9,
        "compute": (prediction.step_time_ns - exposed - bubble) / 1e9,
        "exposed communication": exposed / 1e9,
        "bubble": bubble / 1e9,
        "memory, GiB": prediction.memory_bytes_max / 2**30,
    }

    # `detailed=True` keeps what an account needs: the rows behind these totals, largest first.
    for row in account_of(plan, prediction).communication[:2]:
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
