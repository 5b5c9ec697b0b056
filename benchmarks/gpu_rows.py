"""A row per model: our training beside PyTorch's, from what their processes handed over."""

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.gpu_models import Trained

Figures = dict[str, Any]
LOSSES_APART_MAX = 2e-2  # in bf16, as tests/gpu/test_training.py has it


def row(entry: Trained, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Figures:
    """Join the rows of two processes (`ok`, `figures`, `error`) to the row of one model.

    Every figure is there in every row, None where it is not known; `error` says what went wrong,
    and with whom. `ok`: ours ran, its losses are PyTorch's as far as both are known, and its bits
    are the same twice; None where there was no time. PyTorch's speed is the best of all settings
    that were tried.
    """
    found, tried = ours.get("figures") or {}, (theirs.get("figures") or {}).get("tried", [])
    items = found.get("batch", 0) * found.get("seq_len", 1)
    items = items or (theirs.get("figures") or {}).get("items", 0)
    best, eager = fastest(tried, eager=False), fastest(tried, eager=True)
    measured_s, torch_s = found.get("measured_s"), best.get("step_s")
    compiled = any("step_s" in one and one["setting"]["compiled"] for one in tried)
    result: Figures = {
        "name": f"train.{entry.model}",
        "model": entry.model,
        "ok": None if ours.get("late") else bool(ours.get("ok")) and _holds(found, best, tried),
        "batch": found.get("batch"),
        "seq_len": found.get("seq_len"),
        "unit": entry.unit,
    }
    speeds = {
        "millrace": measured_s,
        "torch": torch_s,
        "millrace_eager": found.get("eager_s"),
        "torch_eager": eager.get("step_s"),
    }
    for unit in ("tokens", "images"):
        known = unit == entry.unit
        result |= {
            f"{who}_{unit}_per_s": _over(items, step_s) if known else None
            for who, step_s in speeds.items()
        }
    result |= {
        "ratio": _over(torch_s, measured_s),
        "eager_ratio": _over(eager.get("step_s"), found.get("eager_s")),
        "torch_s": torch_s,
        "torch_eager_s": eager.get("step_s"),
    }
    names = ("predicted_s", "predicted_for", "prediction_error", "measured_s", "measured_steps")
    names += ("fed_s", "eager_s", "host_share", "idle_share", "mfu", "fusion", "picked", "kinds")
    result |= {name: found.get(name) for name in names}
    result |= _memory(found, best)
    result |= _losses(found, best, tried)
    result |= {
        "bit_equal": found.get("bit_equal"),
        "deterministic_price": found.get("deterministic_price"),
        "torch_deterministic_price": _price(tried, best),
        "torch_setting": best.get("setting"),
        "torch_tried": tried,
        "error": _errors({"millrace": ours, "torch": theirs}, compiled),
    }
    return result


def fastest(tried: Iterable[Mapping[str, Any]], *, eager: bool) -> Mapping[str, Any]:
    """Return the fastest try that may compute as it likes, of eager ones if asked; else {}."""
    timed = [
        one
        for one in tried
        if "step_s" in one
        and not one["setting"]["deterministic"]
        and (not eager or _is_eager(one["setting"]))
    ]
    return min(timed, key=lambda one: one["step_s"], default={})


def _is_eager(setting: Mapping[str, Any]) -> bool:
    return not setting["compiled"] and not setting["graph"] and setting["optimizer"] != "compiled"


def _memory(found: Mapping[str, Any], best: Mapping[str, Any]) -> Figures:
    """Peaks: all that the device has in use, and what was allocated for the training itself."""
    regions = found.get("memory_bytes")
    mine = None if regions is None else sum(regions.values())
    return {
        "millrace_peak_bytes": found.get("device_used_bytes"),
        "torch_peak_bytes": best.get("device_used_bytes"),
        "memory_ratio": _over(found.get("device_used_bytes"), best.get("device_used_bytes")),
        "millrace_allocated_bytes": mine,
        "torch_allocated_bytes": best.get("allocated_bytes"),
    }


def _holds(
    found: Mapping[str, Any], best: Mapping[str, Any], tried: Iterable[Mapping[str, Any]]
) -> bool:
    equal = _losses(found, best, tried)["losses_equal"]
    return found.get("bit_equal") is not False and equal is not False


def _losses(
    found: Mapping[str, Any], best: Mapping[str, Any], tried: Iterable[Mapping[str, Any]]
) -> Figures:
    """Losses of the first steps, from the same weights on the same samples.

    Random tokens from random weights are no stable course: a rounding grows with every update. So
    ours are held to what PyTorch's settings, which differ in roundings alone, are apart themselves.
    """
    ours, theirs = found.get("losses"), best.get("losses")
    others = [one["losses"] for one in tried if one.get("losses")]
    spread = max((max(step) - min(step) for step in zip(*others, strict=False)), default=0.0)
    apart = None
    if ours and theirs:
        apart = max(abs(one - two) for one, two in zip(ours, theirs, strict=False))
    return {
        "losses": ours,
        "torch_losses": theirs,
        "losses_apart": apart,
        "torch_losses_apart": spread if len(others) > 1 else None,
        "losses_equal": None if apart is None else apart <= max(LOSSES_APART_MAX, spread),
    }


def _price(tried: Iterable[Mapping[str, Any]], best: Mapping[str, Any]) -> float | None:
    """How much longer the best setting's step is with deterministic algorithms."""
    for one in tried:
        if one["setting"]["deterministic"] and "step_s" in one:
            price = _over(one["step_s"], best.get("step_s"))
            return None if price is None else price - 1
    return None


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def _errors(processes: Mapping[str, Mapping[str, Any]], compiled: bool) -> str | None:
    said = []
    for who, one in processes.items():
        timed = [each for each in (one.get("figures") or {}).get("tried", ()) if "step_s" in each]
        if timed and one.get("late"):
            said.append(f"{who}: {len(timed)} settings were timed when its time was up")
        elif one.get("error"):
            said.append(f"{who}: {one['error']}")
    if not compiled:
        said.append("torch: no step of torch.compile was timed, so that the ratio says little")
    return "; ".join(said) or None


def lines(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line per row, for people."""
    head = f"{'model':12} {'batch':>5} {'ours/s':>10} {'torch/s':>10} {'ratio':>6} {'eager':>6}"
    head += f" {'predicted':>10} {'measured':>10} {'memory':>7} {'host':>6} {'idle':>6} {'mfu':>6}"
    found = [head]
    for one in rows:
        unit = one["unit"]
        ours, theirs = (one[f"{who}_{unit}_per_s"] for who in ("millrace", "torch"))
        found.append(
            f"{one['model']:12} {_said(one['batch'], 'd', 5)} {_said(ours, ',.0f', 10)} "
            f"{_said(theirs, ',.0f', 10)} {_said(one['ratio'], '.3f', 6)} "
            f"{_said(one['eager_ratio'], '.3f', 6)} {_ms(one['predicted_s'])} "
            f"{_ms(one['measured_s'])} {_said(one['memory_ratio'], '.2f', 7)} "
            f"{_said(one['host_share'], '.1%', 6)} {_said(one['idle_share'], '.1%', 6)} "
            f"{_said(one['mfu'], '.1%', 6)}"
        )
        if one["deterministic_price"] is not None:
            bits = "equal" if one["bit_equal"] else "DIFFERENT"
            price = _said(one["torch_deterministic_price"], "+.1%", 1)
            found.append(
                f"{'':12} deterministic mode costs {one['deterministic_price']:+.1%} (torch: "
                f"{price}); captured and eagerly it gives {bits} bits"
            )
        if one["losses_apart"] is not None:
            spread = _said(one["torch_losses_apart"], ".1e", 1)
            found.append(f"{'':12} losses apart by {one['losses_apart']:.1e} (PyTorch's: {spread})")
        if one["error"]:
            found.append(f"{'':12} {one['error']}")
    return found


def lines_without_times(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line per row of what an emulated device can show: its clock is none."""
    found = []
    for one in rows:
        losses = "losses are not compared"
        if one["losses_apart"] is not None:
            losses = f"losses apart by {one['losses_apart']:.1e}"
        bits = {True: "equal bits", False: "DIFFERENT bits", None: "bits are not known"}
        ended = "ok" if one["ok"] else one["error"] or "failed"
        found.append(f"  {one['model']}: {ended}; {losses}; {bits[one['bit_equal']]}")
    return found


def markdown(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the rows as a table of a README: each line of it is of one run on one device."""
    found = [
        "| model, batch × tokens | ours | PyTorch's best | ratio | step | predicted | bound "
        "| losses apart (PyTorch's own) |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for one in rows:
        ours, theirs = (one[f"{who}_{one['unit']}_per_s"] for who in ("millrace", "torch"))
        timed = [each for each in one["torch_tried"] if "step_s" in each]
        compiled = any(each["setting"]["compiled"] for each in timed)
        bound_s = sum(kind["bound_s"] for kind in one["kinds"] or ()) or None
        best = f"{theirs:,.0f} (of {len(timed)}{'' if compiled else ', eager'})" if theirs else "-"
        cells = (
            f"{one['model']}, {one['batch']} × {one['seq_len']}",
            f"{_said(ours, ',.0f', 1)} {one['unit']}/s",
            best,
            _said(one["ratio"], ".2f", 1),
            *(_ms(seconds).strip() for seconds in (one["measured_s"], one["predicted_s"], bound_s)),
            "{} ({})".format(
                *(_said(one[name], ".1g", 1) for name in ("losses_apart", "torch_losses_apart"))
            ),
        )
        found.append(f"| {' | '.join(cells)} |")
    return "\n".join(found)


def _said(value: float | None, how: str, width: int) -> str:
    return f"{'-' if value is None else format(value, how):>{width}}"


def _ms(seconds: float | None) -> str:
    return _said(None if seconds is None else seconds * 1e3, ".2f", 7) + " ms"
