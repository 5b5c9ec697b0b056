"""GivenSettings: what a TOML file, a Python module or a command line sets, by dotted name."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from millrace.trainers.name_lists import listed
from millrace.trainers.scripts.launched import LaunchedProgram, launches
from millrace.trainers.torchtitan.older_settings import renamed
from millrace.trainers.torchtitan.python_module import (
    NOT_EVALUATED,
    ConfigCall,
    parse_module,
    shipped,
)
from millrace.trainers.torchtitan.settings_table import (
    NEWEST,
    PLANNED,
    TOML,
    SettingsTable,
    table_of,
)
from millrace.trainers.trainer import SettingsError, SettingsSource, flattened

PROGRAM = re.compile(r"(torchtitan\.train|(?:\./)?(?:torchtitan/)?train\.py)$")
SCRIPT = "run_train.sh"  # which torchtitan ships, and which takes its settings from variables
CHECKPOINT = re.compile(r"activation[_-]checkpoint:(selective|full|memory-budget|none)$")
POLICIES = {
    "selective": "SelectiveAC",
    "full": "FullAC",
    "memory-budget": "MemoryBudgetAC",
    "none": None,
}
# Flavours of models that 0.3.0 does not have, or not as decoders of its table.
ZOO = {
    "llama2.7b": "llama2-7b",
    "llama2.13b": "llama2-13b",
    "llama2.70b": "llama2-70b",
    "llama4.17bx16e": "llama4-scout",
    "llama4.17bx128e": "llama4-maverick",
    "gpt_oss.20b": "gpt-oss-20b",
    "gpt_oss.120b": "gpt-oss-120b",
}
KEPT_OPTIMIZER = ("lr", "betas", "eps", "weight_decay")


@dataclass(slots=True, kw_only=True)
class GivenSettings:
    """Settings that are set, of a release.

    Attributes
    ----------
    table : SettingsTable
        Of the release whose settings they are.
    values : dict
        By dotted name; `activation_checkpoint` holds the name of the policy, None for none.
    sizes : mapping
        Of the model, in the words of `SIZES`.
    converters : tuple of str
        Names of what quantises products.
    expert_backend : str
        What sends tokens to experts: standard, deepep or hybridep.
    classes : dict
        Names of the classes of sections that have several.
    zoo_name : str
        Name of the catalogue's model that a flavour is, where its sizes are not in the table.
    launch : LaunchedProgram or None
        What starts it.
    left_out : set of str
        Names that are not to be read.
    unread : list of str
        Names that no release has.
    stated : mapping
        Values by the names with which they are set, of whatever release.
    """

    table: SettingsTable
    values: dict[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=dict)
    converters: tuple[str, ...] = ()
    expert_backend: str = "standard"
    classes: dict[str, str] = field(default_factory=dict)
    zoo_name: str = ""
    launch: LaunchedProgram | None = None
    left_out: frozenset[str] = frozenset()
    unread: list[str] = field(default_factory=list)
    stated: Mapping[str, Any] = field(default_factory=dict)

    def put(self, name: str, value: Any) -> None:
        """Set a setting, if a release has it and it is not left out; a list may be one text."""
        if name in self.left_out:
            return
        if not self.table.has(name):
            self.unread.append(name)
            return
        if isinstance(value, str) and self.table.rows[name]["type"].startswith("list[str]"):
            value = [word for word in value.split(",") if word]
        self.table.check(name, value)
        self.values[name] = value

    def get(self, name: str) -> Any:
        """Value of a setting, or its default."""
        return self.values.get(name, self.table.default(name))


def looks_familiar(source: SettingsSource) -> bool:
    """True if a source names torchtitan, or has the sections of its TOML.

    Parameters
    ----------
    source : SettingsSource
        Settings of any trainer.
    """
    if any(name.endswith(".toml") for name in source.files):
        return "[parallelism]" in source.text or "[training]" in source.text
    return bool(re.search(r"torchtitan|run_train\.sh", source.text))


def given_settings(source: SettingsSource) -> GivenSettings:
    """Settings of a source, checked by name.

    Parameters
    ----------
    source : SettingsSource
        A TOML file, a Python module, a command line or a script, or what belongs together of them.

    Raises
    ------
    SettingsError
        What is missing, or which setting is none.
    """
    launch, environment = _launch_of(source)
    words = list(launch.arguments) if launch else []
    options = {**_options(words, ("module", "config", "job.config_file")), **environment}
    documents = {name: text for name, text in source.files.items() if name.endswith(".toml")}
    named = options.get("job.config_file", "").rpartition("/")[2]
    modules = [text for name, text in source.files.items() if name.endswith(".py")]
    if len(documents) > 1 and named not in documents:
        raise SettingsError(f"{', '.join(documents)}: a job has one TOML file; give that alone")
    if documents:
        text = documents.get(named) or next(iter(documents.values()))
        given = _of_toml(text, source.left_out)
    elif modules:
        call, constants = _configuration(modules[0], options.get("config", ""))
        given = _of_call(call, constants, source.left_out)
    elif "job.config_file" in options:
        raise SettingsError(
            f"{options['job.config_file']}: give this file too, beside the command line"
        )
    elif "config" in options:
        given = _of_call(_shipped_configuration(options), {}, source.left_out)
    else:
        raise SettingsError(
            "expected torchtitan's TOML file, its module of configurations, or a command line with "
            "--module and --config"
        )
    given.launch = launch
    _override(given, words)
    _override(given, [f"--{name}={text}" for name, text in source.values.items() if "." in name])
    given.stated, given.values = given.values, renamed(given.table.rows, given.values)
    for name in given.values.keys() & given.table.rows.keys():
        given.table.check(name, given.values[name])
    if "model" not in source.values:
        _resolve_flavor(given)
    return given


def _launch_of(source: SettingsSource) -> tuple[LaunchedProgram | None, dict[str, str]]:
    """Launch of torchtitan's program, or of its script, and what its environment sets."""
    programs = launches(source)
    for launch in programs:
        if PROGRAM.search(launch.program):
            return launch, {}
    shipped_script = next((x for x in programs if x.program.endswith(SCRIPT)), None)
    if shipped_script is None:
        return None, {}
    said = shipped_script.environment
    devices = int(said["NGPU"]) if said.get("NGPU", "").isdigit() else 8
    spelled = {"MODULE": "module", "CONFIG": "config", "CONFIG_FILE": "job.config_file"}
    return (
        replace(shipped_script, nodes=1, devices_per_node=devices),
        {spelled[name]: text for name, text in said.items() if name in spelled},
    )


def _options(words: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Values of the options of these names among words."""
    values = {}
    for position, word in enumerate(words):
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name in names:
            values[name] = value if equals else "".join(words[position + 1 : position + 2])
    return values


def _shipped_configuration(options: Mapping[str, str]) -> ConfigCall:
    call = shipped(options["config"], options.get("module", ""))
    if not isinstance(call, ConfigCall):
        raise SettingsError(
            f"--module {options.get('module', 'NAME')} --config {options['config']}: torchtitan "
            f"{NEWEST} ships none of this name whose sizes are known; give the module's file too"
        )
    return call


def _configuration(text: str, function: str) -> tuple[ConfigCall, dict[str, Any]]:
    module = parse_module(text)
    return module.configuration(function), module.constants


def _of_toml(text: str, left_out: frozenset[str]) -> GivenSettings:
    given = GivenSettings(table=table_of(TOML), left_out=left_out)
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"the file is no TOML: {error}") from None
    for name, value in flattened(document):
        given.put(name, value)
    if len(given.unread) > len(given.values):
        raise SettingsError(
            f"no release of torchtitan has {listed(given.unread)}: is this a file of torchtitan?"
        )
    return given


def _of_call(
    call: ConfigCall, constants: Mapping[str, Any], left_out: frozenset[str]
) -> GivenSettings:
    """Settings of a call of `Trainer.Config`."""
    given = GivenSettings(table=table_of(NEWEST), left_out=left_out)
    for section, value in call.keywords.items():
        if section == "model_spec":
            _read_model(given, value, constants)
        elif section == "activation_checkpoint":
            given.values[section] = (
                value.name.partition(".")[0] if isinstance(value, ConfigCall) else None
            )
        elif section == "optimizer":
            _read_optimizer(given, value)
        elif isinstance(value, ConfigCall):
            given.classes[section] = value.name.partition(".")[0]
            for name, setting in value.keywords.items():
                _set(given, f"{section}.{name}", setting, named=section != "loss")
        elif value is not NOT_EVALUATED:
            _set(given, section, value, named=True)
    return given


def _set(given: GivenSettings, name: str, value: Any, *, named: bool) -> None:
    if isinstance(value, ConfigCall):
        for key, inner in value.keywords.items():
            _set(given, f"{name}.{key}", inner, named=False)
        return
    if name in given.table.rows and value is NOT_EVALUATED:
        raise SettingsError(f"{name} is {value!r}, which is not done here; write its value")
    if name in given.table.rows or named:
        given.put(name, value)


def _read_model(given: GivenSettings, value: Any, constants: Mapping[str, Any]) -> None:
    if isinstance(value, ConfigCall) and value.name == "model_registry":
        flavor = [*value.arguments, value.keywords.get("flavor")][0]
        model = value.keywords.get("model", "")
        given.values |= {"model.name": model, "model.flavor": flavor}
        given.expert_backend = value.keywords.get("moe_comm_backend") or "standard"
        given.classes["attention"] = str(value.keywords.get("attn_backend", "flex"))
        converters = value.keywords.get("converters") or []
    elif isinstance(constants.get("SIZES"), dict):
        given.sizes = constants["SIZES"]
        given.expert_backend = str(constants.get("EXPERT_BACKEND", "standard"))
        converters = constants.get("CONVERTERS") or []
    else:
        raise SettingsError(
            "model_spec: expected model_registry(…) of torchtitan, or a module that Millrace wrote"
        )
    if not isinstance(converters, list):
        raise SettingsError(f"converters: {converters!r}; write them as a list")
    given.converters = tuple(
        c.name.partition(".")[0] for c in converters if isinstance(c, ConfigCall)
    )


def _read_optimizer(given: GivenSettings, value: Any) -> None:
    if not isinstance(value, ConfigCall):
        return
    if value.arguments:
        value.keywords.setdefault("lr", value.arguments[0])
    for name, setting in value.keywords.items():
        if name in KEPT_OPTIMIZER and setting is not NOT_EVALUATED:
            numbers = setting if name == "betas" else (setting,)
            pair = not isinstance(numbers, (tuple, list)) or len(numbers) != 1 + (name == "betas")
            if pair or any(type(number) not in (int, float) for number in numbers):
                raise SettingsError(f"optimizer.{name} is {setting!r}: expected numbers")
            given.values[f"optimizer.{name}"] = setting
        elif f"optimizer.{name}" in given.table.rows:
            given.put(f"optimizer.{name}", setting)


def _override(given: GivenSettings, words: Sequence[str]) -> None:
    """Take over what the words of a command line set."""
    position = 0
    while position < len(words):
        word, position = words[position], position + 1
        policy = CHECKPOINT.match(word)
        if policy:
            given.values["activation_checkpoint"] = POLICIES[policy[1]]
            continue
        if not word.startswith("--"):
            if not word.startswith(("$", "activation")):
                raise SettingsError(f"`{word}`: expected --SECTION.NAME VALUE")
            continue
        name, equals, text = word[2:].partition("=")
        name = name.replace("-", "_")
        if name in ("module", "config", "job.config_file"):
            position += not equals
            continue
        section, _, field_name = name.rpartition(".")
        positive = f"{section}.{field_name.removeprefix('no_')}"
        if given.table.rows.get(positive, {}).get("type") == "bool":
            following = words[position] if position < len(words) else ""
            if not equals and following.lower() in ("true", "false"):
                text, position = following, position + 1
            stated = text.lower() != "false"
            given.put(positive, stated and not field_name.startswith("no_"))
            continue
        row = given.table.rows.get(name)
        if not equals and position < len(words) and (row or not words[position].startswith("--")):
            text, position = words[position], position + 1
        elif not equals and row:
            raise SettingsError(f"--{name}: expected a value after it")
        checked = row is not None and name.startswith(PLANNED)
        given.put(name, _converted(row["type"], name, text) if row and checked else text)


def _converted(kind: str, name: str, text: str) -> Any:
    """Value of a word, by the type of its setting."""
    if text == "None" and "None" in kind:
        return None
    try:
        if kind.startswith("int"):
            return int(text)
        if kind.startswith("float"):
            return float(text)
    except ValueError:
        raise SettingsError(f"--{name} is `{text}`: expected {kind}") from None
    return text


def _resolve_flavor(given: GivenSettings) -> None:
    """Look up the sizes of a flavour, if there are none yet."""
    if given.sizes:
        return
    name, flavor = given.get("model.name"), given.get("model.flavor")
    base = str(flavor).removesuffix("_flex").removesuffix("_varlen")
    base = base.removesuffix("_flex_attn").removesuffix("_varlen_attn")
    key = f"{name}.{base}"
    given.zoo_name = ZOO.get(key.lower(), "")
    if given.zoo_name:
        return
    if key not in given.table.flavors:
        names = [row.partition(".")[2] for row in given.table.flavors if row.startswith(f"{name}.")]
        choices = (
            f"known: {', '.join(names)}" if names else "known: those of llama3, qwen3, deepseek_v3"
        )
        raise SettingsError(
            f"model {name}, flavor {flavor}: its sizes are not known; {choices}; or give --set "
            f"model=NAME with a name of `millrace models`"
        )
    given.sizes = given.table.flavors[key]
