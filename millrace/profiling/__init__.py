"""Profiles of this machine: how they are taken, what a plan adds to them, and what a run does.

In come plans and traces, out comes a Device whose tables say what ops and collectives take here.

Read `local_profile.py` first.
"""
