"""Describe a cluster of your own, plan a model for it, and ask what a faster network is worth.

Run:     python examples/own_cluster.py
Needs:   Millrace and own_cluster.toml beside this file, no GPU; takes ten seconds on two cores.
Prints:  the levels of links as Millrace understood the file; the plan; for the file's network and a
         faster one the stages of the plan, the step time and the cost of a million tokens; what
         binds the step with the faster one, and what that is worth an hour.
"""

from pathlib import Path

import millrace

path = str(Path(__file__).with_name("own_cluster.toml"))
cluster = millrace.cluster(path)
print(f"{cluster.name}: {cluster.devices} devices in {cluster.nodes} nodes")
for level in cluster.levels:
    link = level.link
    print(f"  {level.name}: {link.bandwidth_bytes_per_s / 1e9:.1f} GB/s a device ({link.source})")

# One pin leaves a choice of replicas and stages; without it there is tensor parallelism as well.
pins = millrace.Pins(tp=1)
planned = millrace.plan("gpt2-medium", cluster, global_batch=32, pins=pins)
print(planned)
before = planned.prediction

# `scale` plans and simulates every combination that it is given (sizes, batches, networks), so that
# the network below gets the plan that suits it. Costs are those of a million tokens unless
# `tokens=` says otherwise.
(faster,) = millrace.scale(
    "gpt2-medium",
    [path],
    nodes=[cluster.nodes],
    global_batches=[32],
    pins=pins,
    networks=["4xroce-400"],  # a port of 400 Gb/s for each device
)
print(f"{'network':<12}{'stages':>8}{'step':>11}{'a million tokens':>20}")
for network, stages, step_s, cost_usd in (
    ("own", planned.choices.pp, before.step_time_s, before.cost_usd_per_mtoken),
    (faster.network, faster.pp, faster.step_time_s, faster.cost_usd),
):
    print(f"{network:<12}{stages:>8}{step_s * 1e3:>8.1f} ms{cost_usd:>16.4f} USD")
print(f"{faster.network}: {faster.binds} takes {faster.binds_fraction:.0%} of the step")

# The file prices the devices, not the network. A faster network is worth what the same speed would
# cost in devices.
speedup = before.step_time_s / faster.step_time_s - 1
usd_per_hour = cluster.device.price_usd_per_hour * cluster.devices
print(f"{faster.network} is {speedup:.1%} faster than the network of the file")
print(f"it is worth {usd_per_hour * speedup:.2f} USD an hour; devices cost {usd_per_hour:.2f}")
