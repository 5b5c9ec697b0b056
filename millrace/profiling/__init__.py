"""Profiling of this machine: measured profiles, and the terms that plans and runs add to them.

In come plans and traces, out comes a Device whose tables say what ops and collectives take here.

Read `local_profile.py` first.
"""
