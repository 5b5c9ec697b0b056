"""Report: why a search chose as it did, and what would make room where nothing fits.

Comes in: what a search chose (`explain.py`, `breakdown.py`), or a question without an answer
(`suggestions.py`). Goes out: sentences.
"""
