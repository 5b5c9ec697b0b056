"""The beginning of `gpu.sh`: what is missing is one sentence, and nothing is run."""

import sys
from importlib import import_module

NEEDED = (
    "numpy",
    "msgspec",
    "simpy",
    "networkx",
    "typer",
    "rich",
    "mpi4py",
    "pytest",
    "hypothesis",
)


def main() -> int:
    """Run the slice that is asked for; return 3 where there is nothing to run it on."""
    for name in NEEDED:
        try:
            import_module(name)
        except ImportError as missing:
            return refused(
                f"{missing}: run `bash benchmarks/gpu/carry.sh` where there is a network, and "
                f"bring the folder .carry along"
            )
    from benchmarks.gpu.__main__ import missing_gpu
    from benchmarks.gpu.slices.parts import arguments
    from benchmarks.gpu.slices.parts import main as run

    options = arguments()
    if not options.emulated and (missing_one := missing_gpu()) is not None:
        return refused(missing_one)
    return run(options)


def refused(why: str) -> int:
    """Say why nothing is run."""
    print(f"benchmarks/gpu.sh: {why}", file=sys.stderr)
    return 3


if __name__ == "__main__":
    sys.exit(main())
