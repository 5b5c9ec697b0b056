"""Plans that tests on a GPU run, made where there is a solver.

Run `python -m benchmarks.gpu.slices.plans FOLDER`. A plan of one device needs no solver; those of
several ranks do.
"""

import sys
from pathlib import Path

from millrace.models.graph import to_json
from tests.executor.gpu.plans import Pinned, file_of, planned
from tests.executor.gpu.test_training import PARALLEL

PRECISION = "fp32"
FRONT_DOOR: tuple[str, Pinned] = ("gpt", (("dp", 2),))


def main(folder: Path) -> None:
    """Write every plan to a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.json"):
        path.unlink()
    wanted = [FRONT_DOOR, *((model, tuple(pins.items())) for model, pins in PARALLEL)]
    for model, pins in wanted:
        plan, *_ = planned(model, PRECISION, pins)
        (folder / file_of(model, PRECISION, pins)).write_bytes(to_json(plan))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
