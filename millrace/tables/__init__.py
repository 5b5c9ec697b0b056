"""Tables: what of a plan is printed in rows, and the console that it is printed on.

Comes in: a plan. Goes out: tables for a console, as many rows as the plan has stages, mesh axes or
alternatives; only the table of ranks, which is asked for, grows with the devices. Read first
`stages.py`.
"""
