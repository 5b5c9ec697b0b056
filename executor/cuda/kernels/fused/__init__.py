"""Fused: calls of actors that compute several ops, where they are fewer than those of the ops.

Comes in: the context of a fused actor, and the calls of its parts in turn (`kernels.in_turn`),
which are always right. Goes out: fewer calls, or a choice between them and those.
`fused_kernels.py` lists who knows which actors; `fused_products.py` has products with epilogues.
"""
