"""Experts of a mixture: kernels of their choice, and of the ways of tokens to and from them.

Read `routing.py` first (who goes where), then `dispatch.py` (how they get there and back).
"""
