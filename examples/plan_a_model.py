"""Plan a model of the catalogue for a GPU cluster, and read what the plan says.

Run:     python examples/plan_a_model.py
Needs:   Millrace alone, and no GPU; takes about ten seconds on two cores.
Prints:  the plan, its mesh, degrees and schedule; the predicted step time and memory; its cost
         beside the lower bound that the search proved, and the gap between the two.
Writes:  llama2-13b.json, which `millrace show` and `millrace simulate` read.
"""

from pathlib import Path

import millrace

# Two nodes of eight A100s, and a step of 128 samples of 4096 tokens. As nothing else is said,
# Megatron Core runs the plan, in bf16; the search chooses everything else. `millrace clusters`
# lists the devices, and docs/clusters.md says how to describe others.
planned = millrace.plan("llama2-13b", "a100-sxm-80gb:8x2", global_batch=128)
print(planned)

# The choices. The axis `dp+tp` splits the batch of some ops and the weights of others. Where ops
# disagree a degree has no single value and is None, which is `mixed` here.
plan, choices = planned.plan, planned.choices
degrees = {name: getattr(choices, name) for name in ("dp", "tp", "pp", "cp", "zero")}
print("mesh:", " × ".join(f"{axis.name} {axis.size}" for axis in plan.mesh.axes))
print("degrees:", ", ".join(f"{k} {'mixed' if v is None else v}" for k, v in degrees.items()))
print(f"schedule: {plan.schedule}, {plan.stages} stages, {plan.microbatches} microbatches")

# The simulator predicts times in seconds, memory in bytes, and shares as fractions.
prediction = planned.prediction
print(f"step time: {prediction.step_time_s:.2f} s, {prediction.tokens_per_s:,.0f} tokens/s")
print(f"model FLOPs utilisation: {prediction.mfu:.1%}")
print(f"memory: {prediction.memory_bytes_max / 2**30:.1f} GiB on the fullest device")
for kind, size in sorted(prediction.memory_by_kind[0].items(), key=lambda item: -item[1])[:3]:
    print(f"  of stage 0, {kind}: {size / 2**30:.1f} GiB")

# The evidence. No plan that the search covers costs less than the bound, and this plan costs more
# than the bound by the gap. Both are in the planner's own cost; the step time is the simulator's.
evidence = planned.evidence
print(f"cost: {evidence.objective_s:.3f} s, bound: {evidence.bound_s:.3f} s")
print(f"gap: {evidence.gap:.1%}, from {evidence.candidates} candidates")

# A plan is one document, which holds the model, the cluster and every decision.
path = Path("llama2-13b.json")
planned.save(path)
assert millrace.load(path).plan == plan
print(f"wrote {path}, plan {plan.digest()}")
