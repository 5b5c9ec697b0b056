"""Sequence kernels, of ids and positions: embedding, rotary positions and T5's relative bias.

Shards know the global index of their first element, so that an id or a position means the same
wherever the tensor is cut.
"""
