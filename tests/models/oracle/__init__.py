"""A float64 evaluator of graphs, from the definitions of the ops, to test rules and kernels by.

Every op is worked out from its labels and attributes. Read `graphs.py` first; the definitions lie
by theme beside it.
"""

from tests.models.oracle.call import Array
from tests.models.oracle.graphs import KINDS, evaluate, random_values, run

__all__ = ["KINDS", "Array", "evaluate", "random_values", "run"]
