"""Calls of ids and positions: embedding, rotary positions and T5's relative bias.

Read `embedding.py` first; `table.py` names the factories.
"""
