"""Every actor that the compiler fuses has a form on a GPU, and none runs part by part."""

import pytest

from millrace.executor.cuda.cuda_rank import RankCalls
from millrace.executor.cuda.kernels.fused.fused_kernels import FUSED
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.cuda.kernels.unfused_parts import unfused_calls
from millrace.executor.streams import command_buffer
from tests.executor.gpu.plans import planned, runs_of

MODELS = ("gpt", "llama", "bert", "resnet", "wide-deep", "mixtral", "t5")


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("model", MODELS)
def test_no_fused_actor_runs_part_by_part(model: str, precision: str) -> None:
    plan, _, graph = planned(model, precision)
    ranks = runs_of(plan, graph)
    calls = RankCalls(graph, 0, command_buffer(graph, (0,)), ranks[0])

    def alone(context):
        return unfused_calls(context, [make_calls(part.context) for part in context.parts])

    fused = [actor for actor in graph.programs[0].actors if actor.parts]
    assert fused
    for actor in fused:
        context = calls.context(actor, ranks[0])
        assert any(form(context, alone) is not None for form in FUSED), actor.name
