"""The Python API: a verb each for planning, simulating, running, comparing, scaling and profiling.

In come names of models and clusters, plans and runs; out go results: frozen, typed values with
figures in seconds, bytes and fractions, and the documents (Plan, Trace) that they are read off.
`millrace/__init__.py` hands the names out. Read `plan_results.py` first, then the verb you came
for.
"""
