"""Branches beside the search: uniform spaces enumerated by ascending bound, by tables.

Run `python -m benchmarks.planner.branches [NAME…]` from the root of the repository. For every
question (`questions.py`, planned for Megatron-Core) a row tells the best step of all branches, the
lowest bound, the gap, the block programs, bounds above their candidate's plan, and the seconds of
one process. It goes when the search asks so itself (docs/decisions/0021-uniform-spaces.md).
"""

import sys
from time import perf_counter

from benchmarks.planner.questions import MIXED, QUESTIONS
from millrace.api.plan_search import opened_question
from millrace.memory_reserve import reserve_on
from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import build_training
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.search import SearchRequest
from millrace.planner.search.choosing.dispatching import dispatching
from millrace.planner.search.evaluation import Evaluator
from millrace.planner.search.outer import with_settled_model
from millrace.planner.search.placement_groups import candidates_of
from millrace.planner.search.report.search_log import SearchLog
from millrace.planner.search.uniform.branches import UniformLoop

FRAMEWORK = "megatron-core"


def rows(arguments: str) -> list[str]:
    """Rows of a question, one for each way in which tokens reach experts."""
    model, *flags = arguments.split()
    said = dict(zip(flags[::2], flags[1::2], strict=True))
    spec, cluster = opened_question(
        model,
        said["--cluster"],
        seq_len=int(said["--seq-len"]),
        precision=said.get("--precision", "bf16"),
        framework=FRAMEWORK,
    )
    request = SearchRequest(
        model=spec,
        training=TrainingSpec(),
        cluster=cluster,
        global_batch=int(said["--global-batch"]),
        reserve=reserve_on(cluster, None, None),
        runs=capabilities(FRAMEWORK),
    )
    request = with_settled_model(request)
    graph = build_training(request.model, request.training, request.global_batch)
    lines = []
    for asked in dispatching(request, graph):
        record, begin = SearchLog(), perf_counter()
        loop = UniformLoop(Evaluator(asked, graph), lambda line: None, record)
        for some in (candidates_of(asked, graph), candidates_of(asked, graph, [])):
            loop.close(some)
        ranking = loop.ranking()
        gap = ranking.best_ns / ranking.bound_ns - 1
        lines.append(
            f"{model:15} {ranking.best_ns / 1e9:9.4f} {ranking.bound_ns / 1e9:9.4f} {gap:7.2%}"
            f" {record.counts['programs at prices']:9,} {record.counts.get('false bounds', 0):6}"
            f" {perf_counter() - begin:7.1f}"
        )
    return lines


if __name__ == "__main__":
    print(f"{'question':15} {'best s':>9} {'bound s':>9} {'gap':>7} {'programs':>9}  false       s")
    for question in QUESTIONS:
        limited = "--memory-limit" in question.arguments or MIXED in question.arguments
        if question.name in sys.argv[1:] or not (sys.argv[1:] or limited):
            print(*rows(question.arguments), sep="\n", flush=True)
