"""Sequence calls, of ids and positions: embedding, rotary positions and T5's relative bias.

Read `embedding.py` first; `sequence_kernels.py` names the factories.
"""
