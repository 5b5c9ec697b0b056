"""Hosts: where the processes of a run are started, joined by MPI, and ended.

A rank is a child of whoever starts it on its host (`local_ranks.py`), who answers what its MPI asks
(`pmi_server.py`), hears when it ends, and ends it. `rank_runs.py` runs a module as ranks to its
end; what a rank that fails says is in `rank_failures.py`.
"""
