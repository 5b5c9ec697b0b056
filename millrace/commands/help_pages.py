"""Pages of help: commands and options in sections, examples below them.

Options keep the order of their command inside a section. What no section names comes under
`Options`, before the last one.
"""

from textwrap import wrap
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from millrace.commands.examples import EXAMPLES, markdown
from millrace.commands.options.pin_options import PINS

Sections = dict[str, tuple[str, ...]]

COMMANDS: Sections = {
    "First": ("demo", "serve"),
    "Plan": ("plan", "show", "scale", "recommend"),
    "Predict": ("simulate",),
    "Run and compare": ("run", "compare"),
    "Other trainers": ("improve", "import-config", "export"),
    "Look up and measure": ("models", "clusters", "profile", "validate"),
}
PINNED = "Pins: what is left out, the search decides"
PINNED_OPTIONS: Sections = {PINNED: PINS}
MEMORY: Sections = {"Memory of a device": ("memory_limit", "reserve")}
SPENT: Sections = {
    "Prices, failures, jitter": (
        *("price_per_gpu_hour", "mtbf_hours", "checkpoint_rate", "restart_minutes"),
        *("jitter", "seed"),
    ),
}
OPTIONS: dict[str, Sections] = {
    "plan": {
        "Question": (
            *("cluster", "global_batch", "seq_len", "precision", "attention", "optimizer"),
            *("lora_rank", "framework", "optimize_for", "profile"),
        ),
        **MEMORY,
        **PINNED_OPTIONS,
        "Search": ("max_gap", "simpler_within", "seed"),
    },
    "scale": {
        "Question": (
            *("cluster", "nodes", "global_batch", "network", "seq_len", "precision"),
            *("attention", "optimizer", "lora_rank", "framework", "tokens", "worth"),
        ),
        **MEMORY,
        **SPENT,
        **PINNED_OPTIONS,
    },
    "recommend": {
        "Question": (
            *("cluster", "tokens", "within", "budget", "nodes", "global_batch", "network"),
            *("seq_len", "precision", "attention", "optimizer", "lora_rank", "framework"),
        ),
        **MEMORY,
        **SPENT,
        **PINNED_OPTIONS,
    },
    "simulate": {
        "Tried elsewhere": ("cluster", "precision", "framework"),
        "Disturbances": ("jitter", "straggler", "seed"),
        "Simulation": ("fidelity", "trust"),
    },
    "run": {
        "Training": ("steps", "data", "lr", "seed", "weights"),
        "Devices": ("backend", "eager", "loopback", "deterministic"),
        "Checkpoints": (
            *("checkpoint", "checkpoint_every", "checkpoint_minutes", "checkpoint_keep"),
            "resume",
        ),
    },
}
OTHERS, ANSWERS = "Options", "Answer"
ANSWER = ("explain", "top", "output", "csv", "plot", "html", "trace", "as_json", "help")
PIN = "Pin: "  # repeats what the section says
LETTERS = 1000  # letters of a command's line, which is wrapped and not cut


class GroupedCommand(TyperCommand):
    """Command whose options are printed in sections, with examples below them."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Print arguments, then the options of every section."""
        rows: dict[str, list[tuple[str, str]]] = {}
        sections = OPTIONS.get(self.name or "", {})
        for parameter in self.get_params(ctx):
            if (row := parameter.get_help_record(ctx)) is None:
                continue
            title = "Arguments"
            if parameter.param_type_name == "option":
                title = _section(parameter.name or "", sections)
            rows.setdefault(title, []).append((row[0], row[1].removeprefix(PIN)))
        for title in ("Arguments", *sections, OTHERS, ANSWERS):
            if title in rows:
                with formatter.section(title):
                    formatter.write_dl(rows[title])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Print examples, each a line that can be copied."""
        if examples := EXAMPLES.get(self.name or "", ()):
            formatter.write("\nExamples:\n")
            for aim, line in examples:
                formatter.write(f"  # {aim}\n  {broken(line, formatter.width - 2)}\n")


class GroupedCommands(TyperGroup):
    """Commands that are printed in sections, each with its whole line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Print the commands of every section."""
        named = {name for names in COMMANDS.values() for name in names}
        others = tuple(name for name in self.list_commands(ctx) if name not in named)
        for title, names in (*COMMANDS.items(), ("Commands", others)):
            commands = ((name, self.get_command(ctx, name)) for name in names)
            rows = [
                (name, command.get_short_help_str(LETTERS)) for name, command in commands if command
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def broken(line: str, width: int) -> str:
    r"""Command line broken at spaces, so that a shell still takes it for one.

    Parameters
    ----------
    line : str
        The command.
    width : int
        Letters of a line.

    Examples
    --------
    >>> print(broken("millrace show plan.json --ranks", 24))
    millrace show \
          plan.json --ranks
    """
    parts = wrap(line, width - 6, break_long_words=False, break_on_hyphens=False)
    return " \\\n      ".join(parts)


def _section(name: str, sections: Sections) -> str:
    """Title of the section that an option of a command is printed in."""
    if name in ANSWER:
        return ANSWERS
    return next((title for title, names in sections.items() if name in names), OTHERS)


def arrange(app: typer.Typer) -> None:
    """Have an app's commands, and their options and examples, printed in sections."""
    app.info.cls = GroupedCommands
    for command in app.registered_commands:
        command.cls = GroupedCommand
        command.epilog = markdown(command.name or "")
