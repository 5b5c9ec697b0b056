"""Site bounds: what equal layers take on several kinds of device, boxing included."""

from collections.abc import Mapping

import numpy as np

from millrace.planner.search.blocks.cost_tables import DEFERRABLE, FIGURES, MICROBATCH
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.evaluation import Evaluator
from millrace.planner.search.programs import Ask
from millrace.planner.search.stages.even_layers import EvenLayers
from millrace.planner.search.uniform.uniform_loop import SAME, SWEEPS


def site_bounds_ns(
    evaluator: Evaluator, bounds_ns: Mapping[Candidate, float]
) -> dict[Candidate, float]:
    """Bounds of candidates on several sites, raised by one block program a site, for time alone.

    Parameters
    ----------
    evaluator : Evaluator
        Of a request whose framework deals out equal layers.
    bounds_ns : mapping
        Least step time of each that is known.
    """
    graph, programs, mode = evaluator.graph, evaluator.programs, evaluator.modes[0]
    blocks = {block: graph.templates[block] for block in graph.blocks}
    templates = list(dict.fromkeys(blocks.values()))
    counts = [list(blocks.values()).count(template) for template in templates]
    main = int(np.argmax(counts))
    prices = np.zeros((len(FIGURES), len(templates)))
    prices[[MICROBATCH, DEFERRABLE], main] = 1
    each = tuple(map(tuple, prices.tolist()))
    parts = list(dict.fromkeys(part for c in bounds_ns for part in evaluator.shape(c).parts))
    asks = [Ask(shape=part, mode=mode, prices=(), by_template=each) for part in parts]
    answers = programs.solve_many(asks, SWEEPS, SAME)
    least_ns = {
        part: answer if isinstance(answer, float) else answer.bound
        for part, answer in zip(parts, answers, strict=True)
    }
    raised: dict[Candidate, float] = {}
    for candidate, bound_ns in bounds_ns.items():
        sites = evaluator.shape(candidate).parts
        times_ns = np.array([programs.least_block_times_ns(part, mode) for part in sites])
        boxed_ns = np.array([least_ns[part] for part in sites]) / counts[main]
        times_ns[:, main] = np.maximum(times_ns[:, main], boxed_ns)
        even = EvenLayers(
            blocks, evaluator.sends.pipeline(candidate), evaluator.request.runs.layers
        )
        raised[candidate] = max(bound_ns, even.least_step_ns(times_ns))
    return raised
