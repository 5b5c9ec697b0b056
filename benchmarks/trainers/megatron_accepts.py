"""Exported command lines, given to Megatron-LM's own parser and its own checks.

Run `PYTHONPATH=MEGATRON_LM python -m benchmarks.trainers.megatron_accepts FILE` from the root of
the repository, with what `benchmarks.trainers.round_trips --save FILE` wrote, a checkout of
Megatron-LM of the exported version on the path and torch installed. Its `parse_args` and
`validate_args` see each command line as rank 0 of the whole job would, and its `TransformerConfig`
is made of what they return.
"""

import contextlib
import io
import json
import logging
import os
import sys
import typing
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import typer

ACCEPTED = "accepted"
DATA = ("--mock-data", "--tokenizer-type", "NullTokenizer", "--train-iters", "100")
UNFUSED = ("--no-rope-fusion",)  # a kernel of Transformer Engine


def verdict(arguments: Sequence[str], devices: int) -> str:
    """Verdict of Megatron-LM on a command line: accepted, or its complaint."""
    from megatron.core.transformer import MLATransformerConfig
    from megatron.training.argument_utils import core_transformer_config_from_args
    from megatron.training.arguments import parse_args, validate_args

    os.environ |= {"WORLD_SIZE": str(devices), "RANK": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    sys.argv = ["pretrain_gpt.py", *arguments, *DATA, *UNFUSED, "--eval-iters", "0"]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            args = validate_args(parse_args())
            latent = MLATransformerConfig if args.multi_latent_attention else None
            core_transformer_config_from_args(args, latent)
    except (Exception, SystemExit) as error:
        text = str(error) if not isinstance(error, SystemExit) else printed.getvalue()[-300:]
        return f"{type(error).__name__}: {text}"[:300]
    return ACCEPTED


def main(saved: Path) -> None:
    """Print how many saved command lines Megatron-LM accepts, and what it says of the others."""
    if not hasattr(typing, "override"):  # Megatron-LM asks for Python 3.12
        import typing_extensions

        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    import torch
    from megatron.core import utils
    from megatron.training import arguments
    from packaging.version import Version

    torch.cuda.get_device_capability = lambda device=None: (9, 0)  # what an H100 says
    arguments.get_device_arch_version = lambda: 9
    utils._te_version = Version("2.11.0")  # Transformer Engine, which needs a GPU to be built
    verdicts: Counter[str] = Counter()
    for line in saved.read_text("utf-8").splitlines():
        export = json.loads(line)
        if export["trainer"] == "megatron-core":
            verdicts[verdict(export["arguments"], export["devices"])] += 1
    print(f"{verdicts[ACCEPTED]} of {verdicts.total()} command lines {ACCEPTED}")
    for text, count in verdicts.most_common():
        if text != ACCEPTED:
            print(f"  {count:3} {text}")


if __name__ == "__main__":
    typer.run(main)
