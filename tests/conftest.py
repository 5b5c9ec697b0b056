"""Before all tests: a process has one thread for its matrix products, as it has one core.

Libraries take as many threads as there are cores, which wait for one another by turning round; so
two test processes on two cores spend most of their time waiting. This comes before NumPy's import.
"""

import os

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
