"""Settings of a model that a training framework decides, not the model's configuration alone."""

from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from millrace.models.fp8 import NARROW, NARROW_PARTS
from millrace.models.spec import ModelSpec
from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.frameworks.capabilities import Capabilities

MTP_LAYERS_MAX = 16  # published models have one to three
DECODER = "decoder"
DROPLESS = "dropless"
CAPACITY_MAX = 1000  # more than any model has experts to a token


def with_mtp_layers(model: ModelSpec, layers: int | None) -> ModelSpec:
    """Model with so many modules that predict the tokens after the next; None: as it is.

    Parameters
    ----------
    model : ModelSpec
        A language model of the zoo's decoders, or imported from a `config.json` as one.
    layers : int or None
        Modules, 0 for none; at most `MTP_LAYERS_MAX`.

    Raises
    ------
    PlanError
        The number is out of range.
    InfeasibleError
        The model is of a kind that has no such modules.
    """
    if layers is None:
        return model
    if not 0 <= layers <= MTP_LAYERS_MAX:
        raise PlanError(f"--mtp-layers is {layers}: expected 0 to {MTP_LAYERS_MAX}")
    if model.family != DECODER:
        if layers:
            raise InfeasibleError(
                f"--mtp-layers {layers}: `{model.name}` is no decoder of `millrace models` or of a "
                f"config.json; leave it out"
            )
        return model
    return replace(model, config={**model.config, "mtp_layers": layers})


def with_narrow_parts(model: ModelSpec, parts: Collection[str]) -> ModelSpec:
    """Model whose attention, or head, multiplies in 8 bits too; without parts as it is.

    Parameters
    ----------
    model : ModelSpec
        A language model of the zoo's decoders, whose products are in 8 or 4 bits.
    parts : collection of str
        Of `millrace.models.fp8.NARROW_PARTS`.

    Raises
    ------
    InfeasibleError
        A part is none of these, the model is of another kind, or its products are in 16 bits or
        more.
    """
    if not parts:
        return model
    if other := sorted({*parts} - {*NARROW_PARTS}):
        raise InfeasibleError(f"narrow_parts: `{other[0]}` is none of {' and '.join(NARROW_PARTS)}")
    if model.family != DECODER or model.precision not in NARROW:
        raise InfeasibleError(
            f"{' and '.join(parts)} in 8 bits: `{model.name}` in {model.precision} is no decoder "
            f"whose products are in fp8, mxfp8 or nvfp4"
        )
    chosen = " ".join(part for part in NARROW_PARTS if part in parts)
    return replace(model, config={**model.config, "narrow_parts": chosen})


def with_capacity(model: ModelSpec, capacity: str | None, runs: Capabilities) -> ModelSpec:
    """Model whose experts have as many places as a framework, or a pin, gives them.

    Parameters
    ----------
    model : ModelSpec
        Any model; one without experts stays as it is.
    capacity : str or None
        Places of an expert in multiples of an even share of the tokens, or `DROPLESS`; None:
        dropless where the framework is, else as the model's configuration says.
    runs : Capabilities
        The framework's. Where it is dropless, experts count with the tokens of an even share: what
        routers are trained for, and what published runs were compared with. Where it is not,
        none is dropped only if an expert has places for all tokens.

    Raises
    ------
    PlanError
        The capacity is neither a number above 0 nor `DROPLESS`.
    InfeasibleError
        The model has experts, but is of a kind without such a setting.
    """
    if capacity is None and not runs.dropless:
        return model
    factor = _even_share(runs) if capacity in (None, DROPLESS) else parse_capacity(str(capacity))
    if model.family != DECODER or not model.config.get("experts", 0):
        if capacity is not None:
            raise InfeasibleError(
                f"--capacity-factor {capacity}: `{model.name}` is no decoder with experts of "
                f"`millrace models` or of a config.json; leave it out"
            )
        return model
    return replace(model, config={**model.config, "capacity_factor": factor})


def parse_capacity(text: str) -> float:
    """Multiple of an even share that a text says; 0 for `DROPLESS`.

    Parameters
    ----------
    text : str
        `1.25`, or `dropless`.

    Raises
    ------
    PlanError
        It says neither.
    """
    if text == DROPLESS:
        return 0.0
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor <= CAPACITY_MAX:
        raise PlanError(
            f"--capacity-factor {text}: expected a number above 0, at most {CAPACITY_MAX}, or "
            f"{DROPLESS}"
        )
    return factor


def capacity_of(model: ModelSpec, runs: Capabilities) -> str | None:
    """Capacity that a model's experts have, as `with_capacity` takes it; None without experts.

    Parameters
    ----------
    model : ModelSpec
        As a plan holds it.
    runs : Capabilities
        Those of the plan's framework.
    """
    if model.family != DECODER or not model.config.get("experts", 0):
        return None
    factor = msgspec.convert(model.config, DecoderConfig).capacity_factor
    return DROPLESS if factor == _even_share(runs) else f"{factor:g}"


def _even_share(runs: Capabilities) -> float:
    """Capacity in a graph that stands for a dropless one."""
    return 1.0 if runs.dropless else 0.0
