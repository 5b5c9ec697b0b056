"""Rotary calls: x cos + turned(x) sin, recognised with both ways of pairing features.

Where the tables hold the angles of one base from position 0 on, this is the `rotary` op; else (a
stretched model, say) the products with the tables stay, which are constants.
"""

from typing import Any

from millrace.models.importers.patterns import matched
from millrace.models.importers.torch_export.algebra import along, combined, narrowed, scaled
from millrace.models.importers.torch_export.calls.elementwise_calls import floating
from millrace.models.importers.torch_export.draft import Array
from millrace.models.importers.torch_export.extents import leaves, sequence_axis
from millrace.models.importers.torch_export.node_matching import (
    CALLS,
    MatchedCall,
    is_call,
    part_of,
    without_casts,
)
from millrace.models.importers.torch_export.program_reader import (
    Arguments,
    Handler,
    ProgramReader,
    UnsupportedCallError,
)
from millrace.models.importers.torch_export.views import joined, selected, viewed
from millrace.models.labels import SEQUENCE

# True where the features of a pair are neighbours: x with minus the second of each pair first.
_TURNED = {
    False: ("cat", ("neg", ("back", "x")), ("front", "x")),
    True: ("flatten", ("stack", ("neg", ("odd", "x")), ("even", "x"))),
}


def rotary(node: Any) -> MatchedCall | None:
    """Match of the sum of x cos and of the turned x sin."""
    for interleaved, turned in _TURNED.items():
        bound = matched(CALLS, ("add", ("mul", "x", "cos"), ("mul", turned, "sin")), node)
        if bound is not None and all(hasattr(value, "meta") for value in bound.values()):
            dims = int(bound["x"].meta["val"].shape[-1])
            more = {"x": without_casts(bound["x"]), "interleaved": interleaved, "dims": dims}
            return "rotary", {**bound, **more}
    return None


def partly_rotary(node: Any) -> MatchedCall | None:
    """Match of a join of first features that are turned and others as they were."""
    if not is_call(node, "cat") or len(node.args[0]) != 2:
        return None
    matched = rotary(without_casts(node.args[0][0]))
    rest = without_casts(node.args[0][1])
    if matched is None or not (is_call(matched[1]["x"], "slice") and is_call(rest, "slice")):
        return None
    part, rank = matched[1]["x"], node.meta["val"].ndim
    full, dims = part.args[0], matched[1]["dims"]
    size = int(full.meta["val"].shape[-1])
    if len(node.args) < 2 or node.args[1] % rank != rank - 1 or rest.args[0] is not full:
        return None
    if (part_of(part), part_of(rest)) != ((0, dims, 1, size), (dims, size, 1, size)):
        return None
    return "rotary", {**matched[1], "x": without_casts(full)}


_COMPLEX = ("view_as_real", ("mul", ("view_as_complex", ("flatten", "x")), "turns"))


def complex_rotary(node: Any) -> MatchedCall | None:
    """Match of neighbours taken as one complex number each, times turns of length one or so."""
    bound = matched(CALLS, ("flatten", _COMPLEX), node)
    if bound is None or not all(hasattr(value, "meta") for value in bound.values()):
        return None
    x = without_casts(bound["x"])
    same = tuple(x.meta["val"].shape) == tuple(node.meta["val"].shape)
    return ("complex_rotary", {"x": x, "turns": bound["turns"]}) if same else None


def _complex_rotary(reader: ProgramReader, a: Arguments) -> Array:
    turns = a["turns"]
    if isinstance(turns, Array):
        raise UnsupportedCallError("its turns depend on the inputs")
    cosine, sine = (part.repeat_interleave(2, -1) for part in (turns.real, turns.imag))
    dims = int(cosine.shape[-1])
    tables = {"cos": cosine, "sin": sine, "interleaved": True, "dims": dims}
    return _rotary(reader, {"x": a["x"], **tables})


def _rotary(reader: ProgramReader, a: Arguments) -> Array:
    x = reader.array(floating(a["x"]))
    interleaved = bool(a["interleaved"])
    place = _positions(a["cos"], a["sin"], x, a["dims"])
    base = None if place is None else base_of(a["cos"], a["sin"], interleaved)
    if place is None or base is None:
        return _by_tables(reader, x, a, interleaved)
    turns = {"interleaved": interleaved, "inverse": False}
    attributes = {"base": base, "dims": int(a["dims"]), **turns}
    return along(reader.draft, "rotary", x, -1, "d!", attributes)


def _positions(cosine: Any, sine: Any, x: Array, dims: int) -> int | None:
    """Dim of x, counted from the end, along which positions run, if it is the sequence."""
    if isinstance(cosine, Array) or isinstance(sine, Array) or cosine.shape != sine.shape:
        return None
    long = [dim for dim in range(-cosine.ndim, -1) if cosine.shape[dim] > 1 and cosine.stride(dim)]
    if len(long) != 1 or -long[0] > len(x.dims) or cosine.shape[-1] != dims:
        return None
    axes = leaves(x.dims[long[0]])
    if len(axes) != 1 or not x.real(axes[0]) or axes[0].size != cosine.shape[long[0]]:
        return None
    sequence_axis(axes[0])
    return long[0] if axes[0].role == SEQUENCE else None


def _by_tables(reader: ProgramReader, full: Array, a: Arguments, interleaved: bool) -> Array:
    draft, size = reader.draft, int(a["dims"])
    x = narrowed(draft, full, -1, 0, size)
    if interleaved:
        pairs = viewed(draft, x, (*x.shape[:-1], size // 2, 2))
        first, second = (selected(draft, pairs, -1, index) for index in (0, 1))
        parts = (scaled(draft, second, -1.0), first)
        arrays = [Array(part.tensor, (*part.dims, ())) for part in parts]
        turned = joined(draft, arrays, -1)
        turned = viewed(draft, turned, x.shape)
    else:
        front, back = (narrowed(draft, x, -1, start, size // 2) for start in (0, size // 2))
        turned = joined(draft, (scaled(draft, back, -1.0), front), -1)
    plain = combined(draft, "mul", x, reader.array(a["cos"]))
    rotated = combined(draft, "add", plain, combined(draft, "mul", turned, reader.array(a["sin"])))
    if size == full.shape[-1]:
        return rotated
    return joined(draft, (rotated, narrowed(draft, full, -1, size, full.shape[-1] - size)), -1)


def base_of(cosine: Any, sine: Any, interleaved: bool) -> float | None:
    """Base of tables of angles, one row per position from 0 on, or None."""
    import torch

    size = int(cosine.shape[-1])
    for dim in range(cosine.ndim - 1):
        if not cosine.stride(dim):
            cosine, sine = cosine.narrow(dim, 0, 1), sine.narrow(dim, 0, 1)
    first, second = (table.reshape(-1, size).double() for table in (cosine, sine))
    angle = torch.atan2(second[1], first[1])
    angle = angle[::2] if interleaved else angle[: size // 2]
    if bool((angle <= 0).any()) or abs(float(angle[0]) - 1) > 1e-5:
        return None
    # The slowest pair knows the base best; where there is one pair, any base will do.
    base = float(angle[-1]) ** (-size / (size - 2)) if size > 2 else 10000.0
    base = float(f"{base:.6g}")
    rounded = round(base)
    if abs(rounded - base) < 1e-5 * base:
        base = float(rounded)
    exponents = torch.arange(0, size, 2, dtype=torch.float64) / size
    places = torch.arange(first.shape[0], dtype=torch.float64)
    angles = torch.outer(places, base**-exponents)
    angles = angles.repeat_interleave(2, 1) if interleaved else angles.repeat(1, 2)
    pairs = ((angles.cos(), first), (angles.sin(), second))
    error = max(float((exact - table).abs().max()) for exact, table in pairs)
    return base if error < 1e-6 * max(float(places[-1]), 10.0) else None


MATCHERS = (partly_rotary, rotary, complex_rotary)
HANDLERS: dict[str, Handler] = {"rotary": _rotary, "complex_rotary": _complex_rotary}
