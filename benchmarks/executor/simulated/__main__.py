"""Seeded runs of the protocol and the transport on simulated ranks, links and time.

Run `python -m benchmarks.executor.simulated [--runs 10000]` from the root of the repository; some
four minutes a core. Every run has a random actor graph of two to eight ranks on one to four hosts;
a rank of every fourth run dies on the way. What is simulated, and what is checked, says
`benchmarks/executor/simulated/run.py`.

Prints how many runs there were, their firings and messages, and every failure with its seed (exit
code 1). Every tenth run is made twice, to compare its trace. The digest is that of all traces:
equal for equal seeds.
"""

from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from hashlib import blake2b
from typing import Annotated

import typer

from benchmarks.executor.simulated.graphs import meeting_graph_of
from benchmarks.executor.simulated.run import SeededRun, SimulatedOutcome

DEATH_EVERY, REPEAT_EVERY = 4, 20
BATCH = 50


def outcome_of(seed: int) -> SimulatedOutcome | str:
    """Outcome of a seed's run, or in words how it failed."""
    try:
        graph, dies = meeting_graph_of(seed), seed % DEATH_EVERY == 0
        outcome = SeededRun(graph, seed, dies=dies).run()
        if seed % REPEAT_EVERY in (0, 1) and SeededRun(graph, seed, dies=dies).run() != outcome:
            return f"seed {seed}: another trace the second time"
    except Exception as error:
        return f"seed {seed}: {type(error).__name__}: {error}"
    return outcome


def main(
    runs: Annotated[int, typer.Option(help="How many.")] = 10_000,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    processes: Annotated[int, typer.Option(help="Processes that share them.")] = 1,
) -> None:
    """Make the runs and print what came of them."""
    counts: Counter[str] = Counter()
    digest, failures = blake2b(digest_size=8), []
    with ProcessPoolExecutor(processes) as pool:
        for outcome in pool.map(outcome_of, range(first, first + runs), chunksize=BATCH):
            if isinstance(outcome, str):
                failures.append(outcome)
                print(outcome, flush=True)
                continue
            digest.update(outcome.digest.encode())
            counts["firings"] += outcome.firings
            counts["messages"] += outcome.messages
            counts["deaths"] += outcome.died is not None
            counts["several hosts"] += outcome.hosts > 1
    print(
        f"{runs:,} runs, {counts['several hosts']:,} over several hosts, in {counts['deaths']:,} a "
        f"rank died: {counts['firings']:,} firings and {counts['messages']:,} messages were over"
    )
    print(f"{len(failures)} failed; digest of all traces {digest.hexdigest()}")
    raise typer.Exit(1 if failures else 0)


if __name__ == "__main__":
    typer.run(main)
