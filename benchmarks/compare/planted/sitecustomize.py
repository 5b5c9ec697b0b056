"""Faults in the ranks of a run: Python imports this before a rank's own program.

The environment names the fault, as `benchmarks/compare/faults.py` writes it. Ranks are told from
other processes by the number that MPI gives them. A rank whose fault cannot be planted ends.
"""

import json
import os
import sys
import traceback

if "PMI_RANK" in os.environ and "MILLRACE_PLANTED_FAULT" in os.environ:
    try:
        from planted_fault import plant

        plant(int(os.environ["PMI_RANK"]), json.loads(os.environ["MILLRACE_PLANTED_FAULT"]))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
