"""Error of the demo's prediction against its measurement, over several runs.

Run `python -m benchmarks.executor.prediction [RUNS]` from the root of the repository.

Each run is a whole `millrace demo` in a process of its own, with the machine measured anew before
it, so that what varies between runs is all there is: the profile, the plan and the training. Prints
one line a run and then the share within 20 %. Meaningful only while nothing else runs.
"""

import json
import os
import subprocess
import sys
from tempfile import TemporaryDirectory

TOLERANCE = 0.2


def main(runs: int) -> None:
    """Run the demo `runs` times and print predicted and measured step times."""
    errors = []
    for number in range(runs):
        with TemporaryDirectory() as cache:
            told = subprocess.run(
                [sys.executable, "-m", "millrace", "demo", "--json"],
                env={**os.environ, "XDG_CACHE_HOME": cache},
                capture_output=True,
                check=True,
                text=True,
            )
        document = json.loads(told.stdout)
        predicted, measured = (document[name]["step_time_s"] for name in ("predicted", "measured"))
        errors.append(document["error"])
        print(
            f"run {number + 1:2d}: predicted {predicted * 1e3:5.0f} ms, "
            f"measured {measured * 1e3:5.0f} ms, error {document['error']:+.1%}",
            flush=True,
        )
    within = sum(abs(error) <= TOLERANCE for error in errors)
    print(f"{within} of {runs} runs within {TOLERANCE:.0%}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
