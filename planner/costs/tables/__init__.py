"""Tables of a measured device: durations by work, and the forms of ops that they are of.

In comes a table and an amount of work, out comes a duration.

Read `profile_tables.py` first.
"""
