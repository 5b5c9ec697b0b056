"""Faults at random moments of real runs, and what came of them.

Run `python -m benchmarks.faults [--trials 200] [--seed 0] [--kind KIND]` from the root of the
repository, as root where hosts of network namespaces are to be among the runs.

Every trial starts `millrace run` with a plan drawn at random, on 2 to 8 ranks of one machine or of
two or three hosts, with a checkpoint every few steps; harms it at a random moment; waits until it
ends; looks for what was left (processes, shared-memory segments, folders); and compares the losses
of the run that goes on, by itself (`--restarts 1`) or by `--resume`, with those of a run that
nothing befell. Prints a line per trial and a row per kind of fault: how many ended in time, how
long the slowest took from the fault to the end, how many named the right rank, host or file, how
many left nothing, and how many went on to equal bits.
"""

import random
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.executor.namespaces import NetworkHosts, network_hosts, why_unavailable
from benchmarks.faults.harmed_runs import HarmedRun, questions
from benchmarks.faults.harms import KINDS
from benchmarks.faults.trials import Outcome, Trial, outcome_of

HOSTS = 4  # three, and one to spare


def main(
    trials: Annotated[int, typer.Option(min=1)] = 200,
    seed: int = 0,
    kind: Annotated[str | None, typer.Option(help=f"One of {', '.join(KINDS)}.")] = None,
    ranks: Annotated[int, typer.Option(help="The most ranks of a plan.")] = 8,
) -> None:
    """Draw trials, carry them out, and print what came of them."""
    if kind is not None and kind not in KINDS:
        raise SystemExit(f"--kind {kind}: choose one of {', '.join(KINDS)}")
    # A shell's background jobs, and all that they start, ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="faults-")))
        network: NetworkHosts | None = None
        if (reason := why_unavailable()) is None:
            network = stack.enter_context(network_hosts(HOSTS))
        else:
            print(f"on one host alone: {reason}")
        asked = questions(folder, ranks, network)
        rng = random.Random(seed)
        outcomes = []
        for number in range(trials):
            trial = drawn(rng, number, kind, asked, network)
            outcome = outcome_of(trial, folder, network)
            outcomes.append(outcome)
            print(outcome.line(), flush=True)
    print_summary(outcomes)


def drawn(
    rng: random.Random,
    number: int,
    kind: str | None,
    asked: Sequence[HarmedRun],
    network: NetworkHosts | None,
) -> Trial:
    """Trial of this number, drawn at random; kinds take turns."""
    possible = [name for name, fault in KINDS.items() if network is not None or not fault.of_hosts]
    name = kind or possible[number % len(possible)]
    of_hosts = KINDS[name].of_hosts
    # A disk that is mounted for a trial is mounted here, not on hosts.
    on_one = name == "full disk"
    fitting = [q for q in asked if not (of_hosts and q.hosts == 1) and not (on_one and q.hosts > 1)]
    question = rng.choice(fitting)
    return Trial(
        number=number,
        kind=name,
        question=question,
        rank=rng.randrange(question.ranks),
        moment=rng.random(),
        restarts=KINDS[name].ends and rng.random() < 0.5,
    )


def print_summary(outcomes: Sequence[Outcome]) -> None:
    """Print a row per kind of fault, and one of all."""
    print(
        f"\n{'fault':<12}{'trials':>7}{'in time':>9}{'slowest':>9}{'named':>9}{'clean':>7}"
        f"{'equal':>7}"
    )
    for kind in (*KINDS, None):
        of_kind = [outcome for outcome in outcomes if kind in (None, outcome.trial.kind)]
        if not of_kind:
            continue
        named = [outcome.is_named for outcome in of_kind if outcome.is_named is not None]
        slowest_s = max(outcome.ended_s for outcome in of_kind)
        print(
            f"{kind or 'all':<12}{len(of_kind):>7}{sum(o.is_in_time for o in of_kind):>9}"
            f"{slowest_s:>7.1f} s{f'{sum(named)}/{len(named)}':>9}"
            f"{sum(not o.left for o in of_kind):>7}{sum(o.is_equal for o in of_kind):>7}"
        )


if __name__ == "__main__":
    typer.run(main)
