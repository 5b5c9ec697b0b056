"""Transformers coverage: which causal language models of the installed transformers are read.

Run `python -m benchmarks.models.transformers_coverage [TYPE...]` from the root of the repository,
with torch and transformers installed; `--without-torch` reads by configuration alone, `--markdown`
prints the tables of docs/models.md, `--seconds N` and `--gib N` bound each type (300 and 12).

Every `model_type` whose class is made by its default configuration is written as a `config.json`
and read as `millrace models FILE --json` reads it. A line has the verdict, the type, how it was
read, seconds, and the class's parameters, counted on the meta device:

    exact      as many parameters as the class has
    text       as many as its part for text has, where the answer says that the others are left out
    wrong      another number, which follows
    refused    the sentence follows
    traceback  a fault of Millrace, or of what it ran out of

Each type is a forked process, so that none leaves anything behind and libraries are imported once.
"""

import contextlib
import io
import json
import multiprocessing
import os
import re
import resource
import sys
import warnings
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Annotated, Any, NamedTuple

import typer

VERDICTS = ("exact", "text", "wrong", "refused", "traceback")
# Parts of a class beside its part for text.
_TOWERS = re.compile(
    r"(^|\.)(vision_tower|visual|vision_model|audio_tower|multi_modal_projector)\."
)
_WHY = re.compile(r"`(\w+)(?: \([^`]*\))?` in `")  # a call that cannot be expressed


class CoverageRow(NamedTuple):
    """A model type, what was said of it, and how."""

    verdict: str
    model_type: str
    way: str  # configuration, class, or empty where it was not read
    seconds: float
    parameters: int
    said: str

    @property
    def line(self) -> str:
        """Line of the table."""
        return (
            f"{self.verdict:10}{self.model_type:28}{self.way:14}{self.seconds:6.1f} s"
            f"{self.parameters:>20,}  {self.said}"
        )


def main(
    types: Annotated[list[str] | None, typer.Argument(metavar="[TYPE]...")] = None,
    without_torch: Annotated[bool, typer.Option("--without-torch")] = False,
    markdown: Annotated[bool, typer.Option("--markdown")] = False,
    seconds: Annotated[int, typer.Option("--seconds")] = 300,
    gib: Annotated[int, typer.Option("--gib")] = 12,
) -> None:
    """Print a line a type and the counts last, or the tables of the page."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers.models.auto import modeling_auto

    rows: list[CoverageRow] = []
    with TemporaryDirectory() as folder:
        for model_type in types or modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            path = Path(folder) / model_type / "config.json"
            path.parent.mkdir()
            row = _in_a_fork(model_type, path, without_torch, seconds, gib)
            if row is None:
                continue  # a class whose defaults make no model is no case
            rows.append(row)
            if not markdown:
                print(row.line, flush=True)
    if markdown:
        print("\n".join(_tables(rows)))
    else:
        print(", ".join(f"{_count(rows, verdict)} {verdict}" for verdict in VERDICTS))


def _in_a_fork(
    model_type: str, path: Path, without_torch: bool, seconds: int, gib: int
) -> CoverageRow | None:
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_read, args=(model_type, path, without_torch, gib, sending))
    start = perf_counter()
    process.start()
    sending.close()
    parameters = 0
    try:
        while receiving.poll(max(0.0, start + seconds - perf_counter())):
            message = receiving.recv()
            if not isinstance(message, int):
                return message  # type: ignore[no-any-return]
            parameters = message
        said = f"no answer in {seconds} s"
    except EOFError:
        said = "the process ended without an answer"
    finally:
        process.kill()
        process.join()
    return CoverageRow("traceback", model_type, "", perf_counter() - start, parameters, said)


def _read(model_type: str, path: Path, without_torch: bool, gib: int, sending: Connection) -> None:
    """Send the class's parameters and then the row; None where the defaults make no model."""
    resource.setrlimit(resource.RLIMIT_AS, (gib * 2**30, gib * 2**30))
    try:
        parameters, of_text = _written(model_type, path)
    except Exception:
        sending.send(None)
        return
    sending.send(parameters)
    start = perf_counter()
    if without_torch:
        sys.modules |= dict.fromkeys(("torch", "transformers"), None)  # type: ignore[arg-type]
    way = ""
    try:
        code, printed, said = _answer(path)
        verdict = "refused"
        if code == 0:
            (answer,) = json.loads(printed)["rows"]
            way = "class" if answer["family"] == "graph" else "configuration"
            counted = answer["parameters"]
            partial = counted == of_text and "left out" in said
            verdict = "exact" if counted == parameters else "text" if partial else "wrong"
            said = "" if verdict == "exact" else f"{counted:,}"
    except Exception as error:
        verdict, said = "traceback", f"{type(error).__name__}: {error}"
    said = " ".join(said.replace(str(path), "config.json").split())
    sending.send(CoverageRow(verdict, model_type, way, perf_counter() - start, parameters, said))


def _written(model_type: str, path: Path) -> tuple[int, int]:
    """Parameters of the class in its default configuration, which is written, and of its text."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[model_type]()
    with torch.device("meta"), contextlib.redirect_stderr(io.StringIO()):
        model: Any = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    path.write_text(json.dumps(config.to_dict(), default=str))
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    return sum(sizes.values()), sum(sizes[name] for name in sizes if not _TOWERS.search(name))


def _answer(path: Path) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of `millrace models FILE --json`."""
    from millrace.cli import main as millrace

    sys.argv = ["millrace", "models", str(path), "--json"]
    printed, said, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        try:
            millrace()
        except SystemExit as end:
            code = int(end.code or 0)
    return code, printed.getvalue(), said.getvalue()


def _count(rows: Iterable[CoverageRow], verdict: str) -> int:
    return sum(row.verdict == verdict for row in rows)


def _tables(rows: Sequence[CoverageRow]) -> list[str]:
    """Lines of Markdown: how many types are read how, and what stands in the others' way."""
    import transformers

    lines = [
        f"| transformers {transformers.__version__}, {len(rows)} types | types | which |",
        "|---|--:|---|",
    ]
    for way in ("configuration", "class"):
        names = [row.model_type for row in rows if (row.verdict, row.way) == ("exact", way)]
        lines.append(f"| exact, by {way} | {len(names)} | {', '.join(names)} |")
    for verdict in VERDICTS[1:]:
        names = [row.model_type for row in rows if row.verdict == verdict]
        lines.append(f"| {verdict} | {len(names)} | {', '.join(names)} |")
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.verdict == "refused":
            for reason in sorted(set(_WHY.findall(row.said))) or ["another reason"]:
                reasons.setdefault(reason, []).append(row.model_type)
    lines += ["", "| call in the way | types | which |", "|---|--:|---|"]
    lines += [
        f"| {reason if ' ' in reason else f'`{reason}`'} | {len(names)} | {', '.join(names)} |"
        for reason, names in sorted(reasons.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    ]
    return lines


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    typer.run(main)
