"""Decomposition: block programs at prices, as cuts that bound candidates and columns to plan them.

A block program at a price vector gives a *cut*, true of any blocks of its template in any variants,
and a *column*, one such variant. In come the tables of `blocks/`. Read `template_tables.py` first:
one template alone; then `block_oracle.py`, which asks and remembers, `bound_program.py`, which
says what a step of a candidate takes at least, and `mixed_loop.py`, the loop over all candidates.
"""
