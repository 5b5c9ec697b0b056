"""Functional tests of Megatron-LM as published runs: what they measured of their memory.

Comes in: a row of a table with a column an argument. Goes out: a question and pins, by the reader
of Megatron's settings. Read first `memory_rows.py`.
"""
