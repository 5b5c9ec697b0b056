"""Plan a model of the catalogue for a GPU cluster, and read what the plan says.

Run:     python examples/plan_a_model.py
Needs:   Millrace alone, and no GPU; takes about ten seconds on two cores.
Prints:  the plan in one line, its mesh, degrees and schedule; the predicted step time and memory;
         its cost beside the lower bound that the search proved, and the gap between the two.
Writes:  llama2-13b.json, which `millrace show` and `millrace simulate` read.
"""

from pathlib import Path

from millrace import api
from millrace.drawing import headline
from millrace.figures import plan_summary
from millrace.files import load_plan, write_document

# Two nodes of eight A100s, with the launches, overlap and kernels of Megatron Core. The command
# `millrace clusters` lists the devices; docs/clusters.md says how to describe others.
cluster = api.with_framework(api.cluster("a100-sxm-80gb:8x2"), "megatron-core")

# A step has 128 samples of 4096 tokens. The search chooses everything else.
plan = api.search("llama2-13b", cluster, global_batch=128, precision="bf16")

# The decisions. The axis `dp+tp` splits the batch of some ops and the weights of others. Where ops
# disagree a degree has no single value: `plan_summary` has None, which is `mixed` here.
summary = plan_summary(plan)
degrees = {name: summary[name] for name in ("dp", "tp", "pp", "cp", "zero")}
print(headline(plan))
print("mesh:", " × ".join(f"{axis.name} {axis.size}" for axis in plan.mesh.axes))
print("degrees:", ", ".join(f"{k} {'mixed' if v is None else v}" for k, v in degrees.items()))
print(f"schedule: {plan.schedule}, {plan.stages} stages, {plan.microbatches} microbatches")

# The simulator predicts times in seconds and memory in bytes.
figures = plan.figures
print(f"step time: {figures['step_time_s']:.2f} s, {figures['tokens_per_s']:,.0f} tokens/s")
print(f"model FLOPs utilisation: {figures['mfu']:.1%}")
print(f"memory: {figures['memory_bytes_max'] / 2**30:.1f} GiB on the fullest device")
for kind, size in sorted(figures["memory_by_kind"][0].items(), key=lambda item: -item[1])[:3]:
    print(f"  of stage 0, {kind}: {size / 2**30:.1f} GiB")

# The evidence. No plan that the search covers costs less than the bound, and this plan costs more
# than the bound by the gap. Both are in the planner's own cost; the step time is the simulator's.
evidence = plan.evidence
print(f"cost: {evidence.objective_s:.3f} s, bound: {evidence.bound_s:.3f} s")
print(f"gap: {evidence.gap:.1%}, from {evidence.candidates} candidates")

# A plan is one document, which holds the model, the cluster and every decision.
path = Path("llama2-13b.json")
write_document(path, plan)
assert load_plan(path).digest() == plan.digest()
print(f"wrote {path}, plan {plan.digest()}")
