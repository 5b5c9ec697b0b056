"""Savings and costs of a ring: long sequences whose keys and values travel, against gathered ones.

Run `python -m benchmarks.planner.rings` from the root of the repository. Each row is a search with
`cp` pinned to all devices, and with `ring` pinned either way or left to the search; step times are
the simulator's, memory is that of the fullest device. Prints counts and predictions only, so that
they do not depend on the machine.
"""

from millrace.api.plan_search import check_question, search
from millrace.planner.clusters import parse_cluster
from millrace.planner.parallel_degrees import roles
from millrace.planner.search import Pins
from millrace.units import format_bytes, format_seconds

QUESTIONS = (
    ("llama2-7b", "h100-sxm-80gb:8x1", 65536),
    ("llama2-7b", "h100-sxm-80gb:8x4", 131072),
    ("llama3-8b", "h100-sxm-80gb:8x4", 524288),
)
ASKED = (True, False, None)


def main() -> None:
    """Print a row per question and pin."""
    print("| model | cluster | tokens | ring | step time | memory | recomputation |")
    print("|---|---|---|---|---|---|---|")
    for name, cluster_name, tokens in QUESTIONS:
        cluster = parse_cluster(cluster_name)
        for ring in ASKED:
            pins = {"cp": cluster.devices, "dp": 1, "tp": 1, "pp": 1, "ring": ring}
            model = check_question(name, seq_len=tokens, precision="bf16")
            plan = search(model, cluster, 1, pins=Pins.of(pins))
            shown = roles(plan, plan.graph)
            ring_text = {True: "yes", False: "no", None: "of some ops"}[shown["ring"]]
            asked = "searched" if ring is None else "pinned"
            print(
                f"| {name} | {cluster_name} | {tokens} | {ring_text} ({asked}) "
                f"| {format_seconds(plan.figures['step_time_s'])} "
                f"| {format_bytes(plan.figures['memory_bytes_max'])} "
                f"| {shown['recompute'] or 'mixed'} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
