"""Calls of a mixture of experts: the choice of experts, and the ways of tokens to and from them.

Read `routing.py` first (who goes where), then `dispatch.py` (how they get there and back).
"""
