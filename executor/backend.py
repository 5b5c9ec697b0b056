"""Backends: where and how a plan runs."""

from dataclasses import dataclass

from millrace.planner.errors import PlanError

WORKERS = {"numpy": "millrace.executor.worker", "cupy": "millrace.executor.gpu.gpu_worker"}
"""The program of a process of a run, by backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Backend of a run, and the ways in which it runs there.

    Parameters
    ----------
    name
        numpy: on this machine's CPUs; cupy: on its GPUs, one per rank.
    eager
        On GPUs: fire actor by actor, not the captured step.
    loopback
        On GPUs: all ranks as streams of one process on one device, to check a plan, not its speed.
    deterministic
        On GPUs: products take the algorithm that the library puts first, not the fastest by timing,
        and attention and convolutions only kernels that add up in one order: equal bits on any GPU
        of one kind, with nothing kept.

    Raises
    ------
    PlanError
        The name is none of the two, or CPUs are asked for what only GPUs do.
    """

    name: str = "numpy"
    eager: bool = False
    loopback: bool = False
    deterministic: bool = False

    def __post_init__(self) -> None:
        if self.name not in WORKERS:
            raise PlanError(f"--backend {self.name}: choose numpy (CPUs) or cupy (GPUs)")
        if self.on_gpus:
            return
        if self.eager:
            raise PlanError("--eager: on CPUs actors always fire one by one; leave it out")
        if self.deterministic:
            raise PlanError("--deterministic: runs on CPUs always are; leave it out")
        if self.loopback:
            raise PlanError(
                "--loopback puts all ranks on one GPU: add --backend cupy or leave it out"
            )

    @property
    def on_gpus(self) -> bool:
        """True if ranks have GPUs."""
        return self.name == "cupy"

    @property
    def orders(self) -> dict[str, bool]:
        """Fields of a `Job` that say how its ranks run."""
        return {
            "eager": self.eager,
            "loopback": self.loopback,
            "deterministic": self.deterministic,
        }

    def processes(self, ranks: int) -> int:
        """Number of processes that run so many ranks."""
        return 1 if self.loopback else ranks


CPUS = Backend()
