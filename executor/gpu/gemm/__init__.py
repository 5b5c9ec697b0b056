"""GEMM by the vendor's library, cuBLASLt: planned before a step, recorded in it.

In comes a bound `millrace.executor.cuda.calls.ProductCall`; out goes one call of the library on a
stream. `column_major.py` says how the library sees its matrices, `epilogues.py` what it can do in
the same call, `cublaslt.py` plans and runs, `cublaslt_types.py` holds the library's functions and
numbers; `tuning.py` times the library's candidates, and ways of a choice, and `tuning_cache.py`
keeps the fastest.

Read `cublaslt.py` first.
"""
