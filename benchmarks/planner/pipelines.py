"""Cost of a pipeline by the planner against the simulated step time, by schedule.

Every plan is the best under pins of stages, mesh, microbatch and schedule, by the planner's cost
alone (`millrace.planner.search.stages.shape`), then simulated chunk by chunk. What is printed is
cost over simulated time: one line a question, one column a schedule, and how far off each schedule
is. Lines marked * are summed up apart: gradients cross a slow network and have few microbatches to
hide behind, which the planner's cost does not see: it takes what is done once a step as never
hidden.

Run `python -m benchmarks.planner.pipelines [NUMBER…]` from the root of the repository; numbers are
those of the lines. All take about three minutes.
"""

import sys
from dataclasses import dataclass, replace
from statistics import median

import msgspec

from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import model_spec
from millrace.planner.cluster import Cluster
from millrace.planner.clusters import parse_cluster
from millrace.planner.errors import InfeasibleError
from millrace.planner.plan import Plan
from millrace.planner.search import Pins, SearchRequest, search
from millrace.simulator import predict

FEW, MANY = "interleaved", "interleaved more"  # two columns for numbers of chunks
ONCE = "* once a step"
SCHEDULES = ("1f1b", "zb-h1", "zb-v", FEW, MANY)


@dataclass(frozen=True, slots=True)
class PipelineQuestion:
    """Model on a cluster whose network is `slow` times as slow, and chunks to interleave."""

    model: str
    cluster: str
    batch: int
    pins: Pins
    chunks: tuple[int, ...]
    slow: int = 1
    seq_len: int = 2048
    precision: str = "bf16"
    once: bool = False  # what is done once a step weighs much


def pins(pp: int, dp: int, tp: int, micro_batch: int, recompute: str | None = None) -> Pins:
    """Pins of the degrees and the microbatch."""
    return Pins(pp=pp, dp=dp, tp=tp, micro_batch=micro_batch, recompute=recompute)


QUESTIONS = (
    PipelineQuestion("gpt3-1.3b", "a100-sxm-80gb:8x1", 64, pins(4, 1, 2, 2), (2, 6)),
    PipelineQuestion("gpt3-1.3b", "a100-sxm-80gb:8x1", 16, pins(8, 1, 1, 1), (3,)),
    PipelineQuestion(
        "gpt3-2.7b", "v100-sxm-32gb:8x4", 64, pins(8, 1, 4, 1), (2, 4), precision="fp16"
    ),
    PipelineQuestion("gpt3-6.7b", "a100-sxm-80gb:8x4", 64, pins(4, 1, 8, 4), (2, 4)),
    PipelineQuestion("gpt3-6.7b", "h100-sxm-80gb:8x4", 128, pins(4, 2, 4, 1), (2, 4), slow=8),
    PipelineQuestion(
        "gpt3-13b", "v100-sxm-32gb:8x4", 256, pins(8, 1, 4, 1), (5,), precision="fp16"
    ),
    PipelineQuestion("gpt3-13b", "a100-sxm-80gb:8x4", 32, pins(8, 1, 4, 1, "full"), (5,), slow=4),
    PipelineQuestion("gpt3-13b", "a100-sxm-80gb:8x4", 8, pins(4, 1, 8, 1), (2, 5)),
    PipelineQuestion("gpt3-175b", "a100-sxm-80gb:8x16", 32, pins(16, 1, 8, 1), (2, 6), slow=4),
    PipelineQuestion("llama2-7b", "h100-sxm-80gb:8x2", 64, pins(2, 4, 2, 1), (2, 4), seq_len=4096),
    PipelineQuestion("llama2-7b", "a100-sxm-40gb:8x4", 32, pins(16, 1, 2, 1), (2,), 4, 4096),
    PipelineQuestion("llama2-13b", "h100-sxm-80gb:8x8", 128, pins(16, 1, 4, 1), (2,), seq_len=4096),
    PipelineQuestion("llama2-70b", "h100-sxm-80gb:8x8", 64, pins(8, 1, 8, 1), (2, 5), 16, 4096),
    PipelineQuestion("llama3-8b", "h100-sxm-80gb:8x4", 64, pins(8, 1, 4, 1), (2, 4), 8, 8192),
    PipelineQuestion(
        "gpt3-13b", "a100-sxm-80gb:8x4", 32, pins(2, 2, 8, 2), (2, 5), slow=4, once=True
    ),
)


def main(numbers: list[str]) -> None:
    """Print the table and its summary."""
    print(f"{'':2} {'question':44}" + "".join(f"{name:>17}" for name in SCHEDULES))
    ratios_by_name: dict[str, list[float]] = {name: [] for name in (*SCHEDULES, ONCE)}
    for number, question in enumerate(QUESTIONS, 1):
        if numbers and str(number) not in numbers:
            continue
        mark = "*" if question.once else " "
        line = f"{number:2}{mark}{_text(question):44}"
        for name in SCHEDULES:
            ratio = _ratio(question, name)
            line += f"{ratio - 1:>+17.1%}" if ratio else f"{'-':>17}"
            ratios_by_name[ONCE if question.once else name] += [ratio] if ratio else []
        print(line, flush=True)
    print()
    rows = ratios_by_name.pop(FEW) + ratios_by_name.pop(MANY)
    ratios_by_name = {
        "1f1b": ratios_by_name.pop("1f1b"),
        "interleaved-1f1b": rows,
        **ratios_by_name,
    }
    for name, ratios in ratios_by_name.items():
        if ratios:
            errors = [abs(ratio - 1) for ratio in ratios]
            print(
                f"{name:17} {len(ratios):3} plans: median error {median(errors):.1%}, largest "
                f"{max(errors):.1%}, cost over simulated {min(ratios):.3f} to {max(ratios):.3f}"
            )


def _text(question: PipelineQuestion) -> str:
    asked = question.pins
    slow = f", network / {question.slow}" if question.slow > 1 else ""
    mesh = f"{asked.pp} of {asked.dp} × {asked.tp}"
    return f"{question.model} {question.cluster.split('-')[0]} {mesh}, {question.batch}{slow}"


def _ratio(question: PipelineQuestion, name: str) -> float | None:
    """Cost of the plan over its simulated time; None where the schedule is not asked, or cannot."""
    chunks = {FEW: question.chunks[:1], MANY: question.chunks[1:]}
    if name in chunks and not chunks[name]:
        return None
    interleave = chunks[name][0] if name in chunks else None
    schedule = "interleaved-1f1b" if name in chunks else name
    pinned = replace(question.pins, schedule=schedule, interleave=interleave)
    request = SearchRequest(
        model=model_spec(question.model, seq_len=question.seq_len, precision=question.precision),
        training=TrainingSpec(),
        cluster=_slowed(parse_cluster(question.cluster), question.slow),
        global_batch=question.batch,
        pins=pinned,
    )
    try:
        plan: Plan = search(request, remedies=False)
    except InfeasibleError:
        return None
    assert plan.evidence is not None
    simulated = predict(plan, fidelity="stage", spans=False)
    return float(plan.evidence.objective_s) * 1e9 / simulated.step_time_ns


def _slowed(cluster: Cluster, slow: int) -> Cluster:
    link = cluster.inter_node
    bandwidth = link.bandwidth_bytes_per_s / slow
    return msgspec.structs.replace(
        cluster, inter_node=msgspec.structs.replace(link, bandwidth_bytes_per_s=bandwidth)
    )


if __name__ == "__main__":
    main(sys.argv[1:])
