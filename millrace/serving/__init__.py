"""Serving: `millrace serve`, a page on this machine and the HTTP API behind it.

Comes in: questions as JSON, from a browser on this machine alone. Goes out: plans, simulated
figures and what pictures of them are drawn from. Read first `http_app.py` (the addresses), then
`engine_calls.py` (the one file that asks for plans and simulations) and `guards.py` (what is
refused before it is read).
"""
