"""Sandbox: an interpreter of bash with files of its own, in which a script starts nothing.

Every command that the interpreter does not have is a function here that notes its words. An
attempt that complains (a variable that is not set, a file or a folder that is not there) is
mended and repeated, and the mends are what stayed unknown.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from posixpath import basename, dirname, join, normpath
from time import monotonic
from typing import TYPE_CHECKING, Any

from millrace.trainers.scripts.cluster_answers import ANSWERS, ClusterSize, cluster_values
from millrace.trainers.trainer import SettingsError

if TYPE_CHECKING:
    from bashkit import Bash, BuiltinContext, BuiltinResult

FOLDER = "/job"  # where the given files lie
TYPED = ".command"  # name of the file that holds a command line
# A launch script comes to a few hundred commands; an attempt of them takes milliseconds.
CALLS_MAX, LOOPS_MAX = 20_000, 5_000
ATTEMPTS_MAX, ATTEMPT_SECONDS_MAX, SECONDS_MAX, DEPTH_MAX = 60, 1.0, 2.0, 4
COMMANDS_MAX, WORDS_MAX = 2_000, 100_000
# Commands that start a training, or what starts one; absolute paths of them are others' names.
LAUNCHERS = (
    *("torchrun", "python", "python3", "srun", "deepspeed", "mpirun", "mpiexec", "accelerate"),
    *("ssh", "pdsh", "clush", "sbatch", "docker", "singularity", "apptainer", "curl", "wget"),
)
SHELLS = ("bash", "sh", "zsh", "dash")
REMOTE = ("ssh", "pdsh", "clush")  # their last word is a command line
SUFFIXES = (".sh", ".slurm", ".sbatch", ".bash", TYPED)
DOCUMENTS = (".json", ".toml", ".yaml", ".yml", ".py")
# Files of a login, whose absence changes no setting.
LOGIN = re.compile(r"(activate|conda\.sh|profile|\w*rc|set_env\.sh|setvars\.sh|\w*init\w*)$")
# Where a shell is told to stop at what fails or is not set: here, other things fail than there.
STOPPING = re.compile(
    r"(?m)^([ \t]*)set[ \t]+[-+](?!a\b)[A-Za-z]+([ \t]+[-+]?\w+)*(?=[ \t]*($|[;&|#]))"
)
# Where complaints go elsewhere; here they are what is learned from.
HUSHED = re.compile(r"(?<![\w$])2>>?\s*(?:&1|&-|[\w./${}-]+)|(?<=\|)&|&(?=>)")
# What a template leaves to be filled in, `<path of the data>`, as one word.
PLACEHOLDER = re.compile(r"<([A-Za-z](?=[^<>\n]*[A-Z _/-])[^<>\n|&;$()]*[^<>\s|&;$()])>")
UNSET = re.compile(r": \$?(\w+): unbound variable")
REQUIRED = re.compile(r"line \d+: (\w+): (?!command not found|unbound)(.+)$", re.M)
NO_COMMAND = re.compile(r"line \d+: (\S+): command not found")
NO_FOLDER = re.compile(r": cd: (\S+): No such file or directory")
NO_FILE = re.compile(
    r"(?:line \d+|cat|cp|source|\.|grep|sed|wc|head): (\S+): No such file or directory"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedCommand:
    """Command that a script comes to: its words, exported variables, and the file that is run."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    script: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """Commands that a script comes to, and what stayed unknown on the way.

    Attributes
    ----------
    commands : tuple of NotedCommand
        In the order in which they would be started.
    unset : mapping
        Variables, and places of arguments (`3`), that were used and not set, as they were taken.
    missing : tuple of str
        Files that were read or run and are not among those that were given.
    silent : tuple of str
        Commands that are not known and whose output was taken.
    went_on : bool
        The script stopped before it started a program, and was let go on.
    complaint : str
        The interpreter's last, such as of a command that failed; else what the script says last.
    """

    commands: tuple[NotedCommand, ...]
    unset: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    went_on: bool = False
    complaint: str = ""


def run_script(
    files: Mapping[str, str],
    script: str,
    variables: Mapping[str, str],
    cluster: ClusterSize,
    arguments: Sequence[str] = (),
) -> ScriptRun:
    """Commands that a script comes to, on a cluster of a size; nothing is started.

    Parameters
    ----------
    files : mapping
        Texts by name, which lie in the folder of the script.
    script : str
        Name of the one that is run.
    variables : mapping
        Exported variables.
    cluster : ClusterSize
        Nodes and devices that variables and commands of a cluster tell of.
    arguments : sequence of str
        The script's own.

    Raises
    ------
    SettingsError
        It is no shell script, or takes more commands, loops, memory or time than a launch does.

    Examples
    --------
    >>> text = 'TP=$((2 * 2)); A=(--tp $TP "--x 1"); torchrun -n ${N:-8} train.py ${A[@]} $OFF'
    >>> run = run_script({"a.sh": text}, "a.sh", {}, ClusterSize(nodes=1, devices_per_node=8))
    >>> run.commands[0].words, run.unset
    (('torchrun', '-n', '8', 'train.py', '--tp', '4', '--x', '1'), {'OFF': ''})
    """
    mends = _Mends(files=files, script=script, cluster=cluster, variables=dict(variables))
    mends.arguments = list(arguments)
    deadline = monotonic() + SECONDS_MAX
    _mended(mends, deadline, stops_at_unset=True)
    attempt = _mended(mends, deadline)
    if not attempt.over_limit and not any(_launches(each.words) for each in attempt.commands):
        mends.exits = False
        attempt = _mended(mends, deadline)
    if attempt.fault and not attempt.commands:
        raise SettingsError(f"`{_shown(script)}`: {attempt.fault}")
    return ScriptRun(
        commands=tuple(attempt.commands),
        unset=mends.unset,
        missing=tuple(name for name in mends.missing if not LOGIN.search(basename(name))),
        silent=_silent(files, mends.commands),
        went_on=not mends.exits and bool(attempt.commands),
        complaint="".join((attempt.complaints or attempt.said).strip().splitlines()[-1:]),
    )


def _mended(mends: "_Mends", deadline: float, *, stops_at_unset: bool = False) -> "_Attempt":
    """The last of the attempts until one complains about nothing new."""
    for _ in range(ATTEMPTS_MAX):
        attempt = _Attempt(mends, stops_at_unset=stops_at_unset)
        attempt.run()
        if attempt.over_limit or monotonic() > deadline or not mends.learn(attempt):
            break
    return attempt


def _launches(words: Sequence[str]) -> bool:
    return any(word.endswith(".py") or word == "-m" for word in words)


def _shown(script: str) -> str:
    return "the command line" if script == TYPED else script


def _silent(files: Mapping[str, str], commands: Mapping[str, None]) -> tuple[str, ...]:
    """Commands without an answer whose output a text takes."""
    text = "\n".join(files.values())
    return tuple(
        name
        for name in commands
        if name not in ANSWERS and re.search(rf"(\$\(|`)\s*{re.escape(name)}\b", text)
    )


@dataclass(slots=True, kw_only=True)
class _Mends:
    """State that attempts of one script add to: what is set, what lies where, what is a command."""

    files: Mapping[str, str]
    script: str
    cluster: ClusterSize
    variables: dict[str, str]
    arguments: list[str] = field(default_factory=list)
    placed: dict[str, str] = field(default_factory=dict)  # path -> name of the given file
    links: list[str] = field(default_factory=list)
    commands: dict[str, None] = field(default_factory=dict)
    unset: dict[str, str] = field(default_factory=dict)
    missing: dict[str, None] = field(default_factory=dict)
    exits: bool = True

    def learn(self, attempt: "_Attempt") -> bool:
        """Mend what an attempt complains about; False where that is nothing new."""
        text, before = attempt.complaints, self._size()
        for name in UNSET.findall(text):
            self._set(name, "")
        for name, cause in REQUIRED.findall(text):
            if "No such file" not in cause and (name.isidentifier() or name.isdigit()):
                self._set(name, name)
        for path in NO_FOLDER.findall(text):
            if path not in self.links:
                self.links.append(path)
        for name in NO_COMMAND.findall(text):
            self.commands[name] = None
        for path in NO_FILE.findall(text):
            self._place(path.rstrip(";"))
        return self._size() > before

    def _size(self) -> int:
        counted = (self.placed, self.links, self.commands, self.unset, self.missing)
        return sum(map(len, counted))

    def _set(self, name: str, value: str) -> None:
        if name in self.unset:
            return
        self.unset[name] = value = cluster_values(self.cluster).get(name, value)
        if name.isdigit():
            self.arguments += [value] * (int(name) - len(self.arguments))
        else:
            self.variables[name] = value

    def _place(self, path: str) -> None:
        given = {basename(name): name for name in self.files}
        if basename(path) in given:
            self.placed[path] = given[basename(path)]
        elif "/" in path and path not in self.commands and not path.startswith("/dev/"):
            self.commands[path] = None
            self.links.append(dirname(path))  # what a script writes there comes to lie
        elif not path.startswith("/dev/"):
            self.missing[path] = None


class _Attempt:
    """One run of a script in a sandbox, with the mends so far."""

    def __init__(self, mends: _Mends, *, stops_at_unset: bool) -> None:
        self.mends = mends
        self.stops_at_unset = stops_at_unset
        self.commands: list[NotedCommand] = []
        self.complaints = ""
        self.said = ""
        self.fault = ""
        self.over_limit = False
        self._waiting: list[tuple[int, str, BuiltinContext]] = []
        self._words = 0

    def run(self) -> None:
        """Run the script, then every command line that a launcher would hand to a shell."""
        bash, deadline = self._sandbox(), monotonic() + ATTEMPT_SECONDS_MAX
        words = ["bash", join(FOLDER, self.mends.script), *self.mends.arguments]
        self._execute(bash, f"cd {FOLDER}; {shlex.join(words)}")
        for _ in range(DEPTH_MAX):
            waiting, self._waiting = self._waiting, []
            for place, line, context in reversed(waiting):
                if monotonic() > deadline:
                    self.over_limit = True
                    self.fault = "it cannot be worked out: its launchers start it again and again"
                if self.over_limit:
                    break
                later, self.commands = self.commands[place:], self.commands[:place]
                exports = "; ".join(
                    f"export {name}={shlex.quote(value)}"
                    for name, value in context.env.items()
                    if name.isidentifier()
                )
                inner = shlex.join(["bash", "-c", line])
                self._execute(bash, f"({exports}; cd {shlex.quote(context.cwd)}; {inner})")
                self.commands += later
            if not self._waiting or self.over_limit:
                break

    def _sandbox(self) -> "Bash":
        from bashkit import Bash

        mends = self.mends
        texts = {join(FOLDER, name): self._text(name) for name in mends.files}
        texts |= {self._absolute(path): self._text(name) for path, name in mends.placed.items()}
        leave = () if mends.exits else ("exit",)
        bash = Bash(
            cwd=FOLDER,
            files=dict(texts),
            env={name: value for name, value in mends.variables.items() if name.isidentifier()},
            custom_builtins=dict.fromkeys(
                (*LAUNCHERS, *ANSWERS, *mends.commands, *leave), self._note
            ),
            hostname="node0",
            username="user",
            max_commands=CALLS_MAX,
            max_loop_iterations=LOOPS_MAX,
            timeout_seconds=ATTEMPT_SECONDS_MAX,
        )
        for path in texts:
            if path.endswith(SUFFIXES):
                bash.chmod(path, 0o755)
        for link in map(self._absolute, mends.links):
            if not bash.exists(link):
                bash.mkdir(dirname(link), True)
                bash.symlink(FOLDER, link)
        return bash

    def _text(self, name: str) -> str:
        text = self.mends.files[name]
        if name.endswith(DOCUMENTS):
            return text
        text = STOPPING.sub(r"\1:", text.replace("\r\n", "\n"))
        text = HUSHED.sub("", text)
        text = PLACEHOLDER.sub(lambda hit: re.sub(r"\W+", "_", hit[1]), text)
        return f"set -u; {text}" if self.stops_at_unset else text

    def _absolute(self, path: str) -> str:
        return normpath(join(FOLDER, path.replace("~", "/root", 1)))

    def _execute(self, bash: "Bash", line: str) -> None:
        result = bash.execute_sync(line)
        self.complaints += result.stderr
        self.said = result.stdout
        limit = re.search(r"resource limit exceeded: .*", result.stderr)
        if limit or result.error:
            self.over_limit = True
            self.fault = f"it cannot be worked out: {result.error or (limit and limit[0])}"
        elif result.exit_code and re.search("syntax error|unexpected EOF", result.stderr):
            self.fault = result.stderr.strip().splitlines()[-1].rpartition("sh: ")[2]

    def _note(self, context: "BuiltinContext") -> "BuiltinResult":
        """Answer of a command that is not run: noted, with what a cluster would print."""
        from bashkit import BuiltinResult

        words = (context.name, *context.argv)
        self._words += len(words)
        if len(self.commands) < COMMANDS_MAX and self._words < WORDS_MAX:
            inner = _inner_line(words, self.mends.files, context.stdin)
            if inner is None:
                environment = dict(context.env)
                self.commands.append(
                    NotedCommand(words=words, environment=environment, script=self.mends.script)
                )
            else:
                self._waiting.append((len(self.commands), inner, context))
        answer = ANSWERS.get(basename(context.name))
        text = "" if answer is None else answer(words, self.mends.cluster)
        return BuiltinResult(stdout=text, stderr="", exit_code=0)


def _inner_line(words: Sequence[str], files: Mapping[str, Any], stdin: str | None) -> str | None:
    """Command line that a launcher hands to a shell; None where it starts a program itself."""
    if words[0] == "sbatch" and stdin:
        return stdin
    names = {basename(name) for name in files}
    for position, word in enumerate(words):
        if position and word.endswith(".py"):
            return None
        if position and basename(word) in SHELLS:
            return shlex.join(["bash", *words[position + 1 :]])
        if position and word.endswith(SUFFIXES) and basename(word) in names:
            return shlex.join(["bash", *words[position:]])
    if basename(words[0]) in REMOTE and len(words) > 2:
        return words[-1] if " " in words[-1] else None
    return None
