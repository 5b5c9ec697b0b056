"""Power of the tests: of small mistakes in the source, the share that they notice.

Run `python -m benchmarks.mutants [-o FILE] [PACKAGE...] [--per-package N] [--seed S] [--workers W]
[--save FILE] [--only FILE]` from the root of the repository.

A mutant is the source with one small mistake in it: `<` for `<=`, 2 for 1, a loop that is left
out. Those that make a test fail, or run for ever, are killed; the others have survived: the tests
have a hole, or the mistake is none. The mutants are cosmic-ray's (`benchmarks/mutants_places.py`
says which of them are left out), the tests are those that `TABLE` names, and only the files that
reach the mistake are run (`benchmarks/mutants_runs.py`), the quickest first. Needed are
`pip install cosmic-ray==8.7.0 coverage==7.17.3`; they are no requirement of Millrace.

N mutants of every package are drawn by a seed, comparisons, arithmetic, conditions, numbers, flow
and booleans in turn: a share of killed ones is one of this mixture. `--save` writes the mutants
that were drawn, and `--only` takes those of such a file, wherever their lines and files have moved
to; what is no longer there is `gone`.

Results go to FILE (mutants.jsonl) as they come, a line of JSON each; a run that was cut off goes
on where it was, as long as neither the source nor the tests have changed. At the end there is a
table, and every survivor.
"""

import argparse
import json
import queue
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.gpu_processes import unwind_when_asked_to_end

from benchmarks.mutants_places import Mutant, drawn, found_again, mutants_of, with_after
from benchmarks.mutants_runs import (
    MutantOutcome,
    RunError,
    TreeCopy,
    Unmutated,
    digest_of,
    listed,
    reaching,
    read,
    statement_of,
    written,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """Source and the tests that look at it, as paths of the repository (`file::test` for one test).

    `near` are its own tests, `wide` those of what is built on it; `apart` start processes, whose
    lines are not seen, so that they run for every mutant that is still alive.
    """

    source: str
    near: tuple[str, ...]
    wide: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()


TABLE = (
    Package(
        source="planner/actors",
        near=("tests/planner/actors", "tests/planner/test_covering.py"),
        wide=(
            "tests/executor/streams/test_validate.py",
            "tests/executor/test_in_process.py",
            "tests/millrace/test_compare.py",
            "tests/simulator/test_blocks.py",
            "tests/simulator/test_simulate.py",
            "tests/simulator/test_pacing.py::test_less_overlap_takes_longer",
            "tests/simulator/test_pacing.py::test_what_no_one_can_hide_costs_a_step_both_times",
            "tests/test_agreement.py",
        ),
    ),
    Package(
        source="planner/sbp.py",
        near=("tests/planner/test_boxing.py", "tests/planner/test_signatures.py"),
        wide=(
            "tests/executor/test_boxing_kernels.py",
            "tests/planner/compile",
            "tests/planner/search/test_moving.py",
            "tests/planner/search/test_states.py",
        ),
    ),
    Package(
        source="planner/boxing.py",
        near=("tests/planner/test_boxing.py",),
        wide=(
            "tests/planner/compile",
            "tests/planner/search/test_block_program.py",
            "tests/planner/search/test_moving.py",
            "tests/planner/search/test_pricing.py",
        ),
    ),
    Package(
        source="planner/signatures.py",
        near=("tests/planner/test_signatures.py",),
        wide=(
            "tests/planner/compile/test_compile.py",
            "tests/planner/search/test_block_program.py",
            "tests/planner/search/test_pricing.py",
            "tests/planner/search/test_states.py",
        ),
    ),
    Package(
        source="planner/schedules",
        near=("tests/planner/test_schedules.py",),
        wide=("tests/planner/compile", "tests/planner/test_memory.py"),
    ),
    Package(
        source="planner/compile",
        near=("tests/planner/compile",),
        wide=(
            "tests/executor/streams/test_listing.py",
            "tests/planner/fusion/test_fusion.py",
            "tests/planner/test_collectives.py",
            "tests/planner/test_memory.py",
            "tests/simulator/test_blocks.py",
            "tests/simulator/test_stages.py",
            "tests/test_buckets.py",
        ),
    ),
    Package(
        source="planner/costs/launch_overhead.py",
        near=("tests/planner/test_pacing.py", "tests/simulator/test_pacing.py"),
        wide=("tests/simulator/test_blocks.py", "tests/simulator/test_stages.py"),
    ),
    Package(
        source="simulator/chunks",
        near=("tests/simulator/test_stages.py",),
        wide=("tests/simulator/test_blocks.py", "tests/simulator/account"),
    ),
    Package(source="executor/streams", near=("tests/executor/streams",)),
    Package(
        source="executor/transport",
        near=(
            "tests/executor/test_waiting.py",
            "tests/executor/test_in_process.py",
            "tests/executor/cuda/test_meetings.py",
        ),
        apart=("tests/executor/test_transports.py", "tests/executor/test_launch.py"),
    ),
)

RESULTS = Path("mutants.jsonl")
INSTALL = "pip install cosmic-ray==8.7.0 coverage==7.17.3"
SOURCES = ("models", "planner", "simulator", "executor", "millrace")
KILLED, SURVIVED, GONE = "killed", "survived", "gone"
Result = dict[str, Any]


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the arguments, and exit with code 2."""
        self.exit(2, f"{message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw mutants, show them to the tests and print what became of them."""
    options = _options(arguments)
    root = Path.cwd()
    unwind_when_asked_to_end()
    try:
        if options.only is None:
            mutants, gone = sampled(root, options.packages, options.per_package, options.seed), []
        else:
            mutants, gone = kept(root, options.packages, options.only)
        if options.save is not None:
            told = [asdict(mutant) for mutant in mutants]
            options.save.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", "utf-8")
        results = measured(root, options.packages, mutants, options.output, options.workers, _say)
    except RunError as error:
        print(f"stopped: {error}", file=sys.stderr)
        return 1
    results += [{**asdict(mutant), "outcome": GONE, "seconds": 0.0} for mutant in gone]
    print("\n".join(lines(results)))
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="benchmarks.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("packages", nargs="*", metavar="PACKAGE")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--per-package", type=int, default=12, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--workers", type=int, default=1, choices=(1, 2), metavar="1|2")
    parser.add_argument("--save", type=Path, metavar="FILE")
    parser.add_argument("--only", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    package_by_source = {package.source: package for package in TABLE}
    for name in options.packages:
        if name not in package_by_source:
            parser.error(f"no package `{name}`: there are {', '.join(package_by_source)}")
    options.packages = [package_by_source[name] for name in options.packages or package_by_source]
    if options.per_package < 1:
        parser.error(f"--per-package {options.per_package}: at least 1 mutant is drawn")
    if options.only is not None and not options.only.is_file():
        parser.error(f"no file `{options.only}` to take mutants from: `--save` writes one")
    for path in filter(None, (options.output, options.save)):
        if not path.parent.is_dir():
            parser.error(f"no folder `{path.parent}` to write `{path.name}` to")
    for source in (source for package in TABLE for source in (package.source, *_tests(package))):
        if not Path(source.partition("::")[0]).exists():
            parser.error(f"no `{source}` here: run this from the root of the repository")
    if not find_spec("cosmic_ray") or not find_spec("coverage"):
        parser.error(f"cosmic-ray or coverage is missing: {INSTALL}")
    return options


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _tests(package: Package) -> tuple[str, ...]:
    return (*package.near, *package.wide, *package.apart)


def sampled(root: Path, packages: Iterable[Package], count: int, seed: int) -> list[Mutant]:
    """Sample of so many mutants of every package."""
    return [
        mutant
        for package in packages
        for mutant in drawn(_mutants(root, package), count, seed, _text_of(root))
    ]


def kept(root: Path, packages: Sequence[Package], path: Path) -> tuple[list[Mutant], list[Mutant]]:
    """Mutants of a file that was saved, as they are here, and those that are gone."""
    wanted = [Mutant(**fields) for fields in json.loads(path.read_text("utf-8"))]
    wanted = [
        mutant for mutant in wanted if mutant.package in {package.source for package in packages}
    ]
    candidates = [mutant for package in TABLE for mutant in _mutants(root, package)]
    seen = {mutant.path for mutant in candidates}
    names = {mutant.name for mutant in wanted}
    for package in SOURCES:
        for file in sorted((root / package).rglob("*.py")):
            place = file.relative_to(root).as_posix()
            if file.name in names and place not in seen:
                candidates += mutants_of("", place, file.read_text("utf-8"))
    here, gone = [], []
    for mutant in wanted:
        match = found_again(mutant, candidates)
        told = match and with_after(match, _text_of(root)(match.path))
        if told:
            here.append(replace(told, package=mutant.package))
        else:
            gone.append(mutant)
    return here, gone


def _mutants(root: Path, package: Package) -> list[Mutant]:
    source = root / package.source
    files = [source] if source.is_file() else sorted(source.rglob("*.py"))
    return [
        mutant
        for file in files
        for mutant in mutants_of(
            package.source, file.relative_to(root).as_posix(), file.read_text("utf-8")
        )
    ]


def _text_of(root: Path) -> Callable[[str], str]:
    return lambda path: (root / path).read_text("utf-8")


def measured(
    root: Path,
    packages: Sequence[Package],
    mutants: Sequence[Mutant],
    output: Path,
    workers: int = 1,
    say: Callable[[str], None] = lambda message: None,
) -> list[Result]:
    """Results of mutants; those that `output` has already are taken from there.

    Raises
    ------
    RunError
        A test file does not pass without a mutant, a run is no verdict, or `output` is of other
        code.
    """
    files = listed(root)
    runs, results = _begun(output, digest_of(root, files))
    of = {package.source: package for package in packages}
    left = [mutant for mutant in mutants if mutant.key not in results]
    paths = sorted({mutant.path for mutant in left})
    tests = {test: None for mutant in left for test in _files(root, _tests(of[mutant.package]))}
    lacking = [t for t in tests if t not in runs or not runs[t].lines.keys() >= set(paths)]

    def unmutated(copy: TreeCopy, test: str) -> None:
        runs[test] = copy.unmutated(test, paths)
        _append(output, written(runs[test]))
        say(f"{test}: {runs[test].seconds:.1f} s without a mutant")

    def mutated(copy: TreeCopy, mutant: Mutant) -> None:
        shown = _shown(root, of[mutant.package], mutant, runs)
        results[mutant.key] = result = _told(mutant, copy.outcome(mutant, shown))
        _append(output, json.dumps(result, ensure_ascii=False))
        say(f"{result['outcome']} in {result['seconds']:.0f} s: {_place(result)}")

    with tempfile.TemporaryDirectory() as folder:
        copies = [TreeCopy(root, files, Path(folder) / str(number)) for number in range(workers)]
        _each(copies, unmutated, lacking)
        _each(copies, mutated, left)
    return [results[mutant.key] for mutant in mutants]


def _begun(
    output: Path, digest: str
) -> tuple[dict[str, Unmutated], dict[tuple[str, str, str, int], Result]]:
    """Runs and results that a file holds; a fresh one begins with the digest of the code."""
    if not output.exists() or not output.read_text("utf-8").strip():
        _append(output, json.dumps({"code": digest}))
    first, *rest = output.read_text("utf-8").splitlines()
    if json.loads(first).get("code") != digest:
        raise RunError(f"`{output}` has results of other code: name another file")
    runs: dict[str, Unmutated] = {}
    results: dict[tuple[str, str, str, int], Result] = {}
    for line in rest:
        told = json.loads(line)
        if "unmutated" in told:
            runs[told["unmutated"]] = read(told)
        else:
            results[told["path"], told["operator"], told["before"], told["occurrence"]] = told
    return runs, results


def _append(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def _each(
    copies: Sequence[TreeCopy], task: Callable[[TreeCopy, Any], None], items: Iterable[Any]
) -> None:
    """Do a task for every item, on any copy that is free; the first error ends all."""
    free: queue.SimpleQueue[TreeCopy] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def done(item: Any) -> None:
        copy = free.get()
        try:
            task(copy, item)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        waiting = [pool.submit(done, item) for item in items]
        try:
            for future in as_completed(waiting):
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for copy in copies:
                copy.stop()
            raise


def _files(root: Path, tests: Iterable[str]) -> list[str]:
    """Test files under some paths; a test that is named is run like a file."""
    files: dict[str, None] = {}
    for test in tests:
        inside = sorted((root / test).rglob("test_*.py"))
        files |= dict.fromkeys([file.relative_to(root).as_posix() for file in inside] or [test])
    return list(files)


def _shown(
    root: Path, package: Package, mutant: Mutant, runs: dict[str, Unmutated]
) -> list[Unmutated]:
    """Test files that a mutant is shown to, in order."""
    statement = statement_of(_text_of(root)(mutant.path), mutant.line)
    order: list[Unmutated] = []
    for tests in (package.near, package.wide):
        files = sorted(
            (runs[test] for test in _files(root, tests)), key=lambda test_run: test_run.seconds
        )
        order += reaching(mutant, files, statement)
    return order + [runs[test] for test in _files(root, package.apart)]


def _told(mutant: Mutant, outcome: MutantOutcome) -> Result:
    return {
        **asdict(mutant),
        "outcome": KILLED if outcome.killed else SURVIVED,
        "by": outcome.by,
        "late": outcome.late,
        "files": outcome.files,
        "seconds": round(outcome.seconds, 1),
    }


def lines(results: Sequence[Result]) -> list[str]:
    """Lines of the table of packages, and below it the survivors and those gone."""
    told = [
        f"{'package':24}" + _columns("mutants", "killed", "late", "survived", "share", "seconds")
    ]
    sources = list(dict.fromkeys(result["package"] for result in results))
    for name in (*sources, "all"):
        here = [
            result
            for result in results
            if result["outcome"] != GONE and name in (result["package"], "all")
        ]
        killed = [result for result in here if result["outcome"] == KILLED]
        share = f"{len(killed) / len(here):.0%}" if here else ""
        late = sum(result["late"] for result in killed)
        seconds = sum(result["seconds"] for result in here)
        counts = (len(here), len(killed), late, len(here) - len(killed))
        told.append(f"{name:24}" + _columns(*map(str, counts), share, f"{seconds:.0f}"))
    for outcome in (SURVIVED, GONE):
        those = [result for result in results if result["outcome"] == outcome]
        if those:
            told += ["", f"{outcome.capitalize()}:"]
        for result in those:
            told += [_place(result), f"  - {result['before']}", f"  + {result['after']}"]
            if not result.get("files", 1):
                told.append("  no test reaches it")
    return told


def _columns(*cells: str) -> str:
    return "".join(f"{cell:>10}" for cell in cells)


def _place(result: Result) -> str:
    return f"{result['path']}:{result['line']}: {result['operator']}"


if __name__ == "__main__":
    sys.exit(main())
