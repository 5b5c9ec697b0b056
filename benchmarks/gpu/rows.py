"""A row per model: our training beside PyTorch's, from what their processes handed over."""

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.gpu.trained_models import TrainedModel

Figures = dict[str, Any]
LOSSES_APART_MAX = 2e-2  # for bf16, as tests/gpu/test_training.py has it


def row(entry: TrainedModel, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Figures:
    """Row of one model, joined from the rows of two processes (`ok`, `figures`, `error`).

    Every figure is there in every row, None where it is not known; `error` says what went wrong,
    and with whom. `ok`: ours ran, its losses are PyTorch's as far as both are known, and its bits
    are the same twice; None where there was no time. PyTorch's speed is the best of all settings
    that were tried.
    """
    our_figures, tried = ours.get("figures") or {}, (theirs.get("figures") or {}).get("tried", [])
    items = our_figures.get("batch", 0) * our_figures.get("seq_len", 1)
    items = items or (theirs.get("figures") or {}).get("items", 0)
    best, eager = fastest(tried, eager=False), fastest(tried, eager=True)
    measured_s, torch_s = our_figures.get("measured_s"), best.get("step_s")
    compiled = any("step_s" in attempt and attempt["setting"]["compiled"] for attempt in tried)
    result: Figures = {
        "name": f"train.{entry.model}",
        "model": entry.model,
        "ok": None
        if ours.get("late")
        else bool(ours.get("ok")) and _holds(our_figures, best, tried),
        "batch": our_figures.get("batch"),
        "seq_len": our_figures.get("seq_len"),
        "unit": entry.unit,
    }
    speeds = {
        "millrace": measured_s,
        "torch": torch_s,
        "millrace_eager": our_figures.get("eager_s"),
        "torch_eager": eager.get("step_s"),
    }
    for unit in ("tokens", "images"):
        own_unit = unit == entry.unit
        result |= {
            f"{who}_{unit}_per_s": _ratio_or_none(items, step_s) if own_unit else None
            for who, step_s in speeds.items()
        }
    result |= {
        "ratio": _ratio_or_none(torch_s, measured_s),
        "eager_ratio": _ratio_or_none(eager.get("step_s"), our_figures.get("eager_s")),
        "torch_s": torch_s,
        "torch_eager_s": eager.get("step_s"),
    }
    names = ("predicted_s", "predicted_for", "prediction_error", "measured_s", "measured_steps")
    names += ("fed_s", "eager_s", "host_share", "idle_share", "mfu", "fusion", "picked", "kinds")
    result |= {name: our_figures.get(name) for name in names}
    result |= _memory(our_figures, best)
    result |= _losses(our_figures, best, tried)
    result |= {
        "bit_equal": our_figures.get("bit_equal"),
        "deterministic_price": our_figures.get("deterministic_price"),
        "torch_deterministic_price": _price(tried, best),
        "torch_setting": best.get("setting"),
        "torch_tried": tried,
        "error": _errors({"millrace": ours, "torch": theirs}, compiled),
    }
    return result


def fastest(tried: Iterable[Mapping[str, Any]], *, eager: bool) -> Mapping[str, Any]:
    """Fastest try that may compute as it likes, of eager ones if asked; else {}."""
    timed = [
        attempt
        for attempt in tried
        if "step_s" in attempt
        and not attempt["setting"]["deterministic"]
        and (not eager or _is_eager(attempt["setting"]))
    ]
    return min(timed, key=lambda attempt: attempt["step_s"], default={})


def _is_eager(setting: Mapping[str, Any]) -> bool:
    return not setting["compiled"] and not setting["graph"] and setting["optimizer"] != "compiled"


def _memory(our_figures: Mapping[str, Any], best: Mapping[str, Any]) -> Figures:
    """Peaks of memory: all that the device has in use, and what was allocated for the training."""
    regions = our_figures.get("memory_bytes")
    allocated_bytes = None if regions is None else sum(regions.values())
    return {
        "millrace_peak_bytes": our_figures.get("device_used_bytes"),
        "torch_peak_bytes": best.get("device_used_bytes"),
        "memory_ratio": _ratio_or_none(
            our_figures.get("device_used_bytes"), best.get("device_used_bytes")
        ),
        "millrace_allocated_bytes": allocated_bytes,
        "torch_allocated_bytes": best.get("allocated_bytes"),
    }


def _holds(
    our_figures: Mapping[str, Any], best: Mapping[str, Any], tried: Iterable[Mapping[str, Any]]
) -> bool:
    equal = _losses(our_figures, best, tried)["losses_equal"]
    return our_figures.get("bit_equal") is not False and equal is not False


def _losses(
    our_figures: Mapping[str, Any], best: Mapping[str, Any], tried: Iterable[Mapping[str, Any]]
) -> Figures:
    """Losses of the first steps, from the same weights on the same samples.

    Random tokens from random weights are no stable course: a rounding grows with every update. So
    ours are held to what PyTorch's settings, which differ in roundings alone, are apart themselves.
    """
    ours, theirs = our_figures.get("losses"), best.get("losses")
    others = [attempt["losses"] for attempt in tried if attempt.get("losses")]
    spread = max((max(step) - min(step) for step in zip(*others, strict=False)), default=0.0)
    apart = None
    if ours and theirs:
        apart = max(
            abs(our_loss - their_loss) for our_loss, their_loss in zip(ours, theirs, strict=False)
        )
    return {
        "losses": ours,
        "torch_losses": theirs,
        "losses_apart": apart,
        "torch_losses_apart": spread if len(others) > 1 else None,
        "losses_equal": None if apart is None else apart <= max(LOSSES_APART_MAX, spread),
    }


def _price(tried: Iterable[Mapping[str, Any]], best: Mapping[str, Any]) -> float | None:
    """Slowdown of the best setting's step by deterministic algorithms, as a fraction."""
    for attempt in tried:
        if attempt["setting"]["deterministic"] and "step_s" in attempt:
            price = _ratio_or_none(attempt["step_s"], best.get("step_s"))
            return None if price is None else price - 1
    return None


def _ratio_or_none(dividend: float | None, divisor: float | None) -> float | None:
    return dividend / divisor if dividend and divisor else None


def _errors(processes: Mapping[str, Mapping[str, Any]], compiled: bool) -> str | None:
    said = []
    for who, process in processes.items():
        timed = [
            each for each in (process.get("figures") or {}).get("tried", ()) if "step_s" in each
        ]
        if timed and process.get("late"):
            said.append(f"{who}: {len(timed)} settings were timed when its time was up")
        elif process.get("error"):
            said.append(f"{who}: {process['error']}")
    if not compiled:
        said.append("torch: no step of torch.compile was timed, so that the ratio says little")
    return "; ".join(said) or None


def lines(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Lines for people, one or more per row."""
    head = f"{'model':12} {'batch':>5} {'ours/s':>10} {'torch/s':>10} {'ratio':>6} {'eager':>6}"
    head += f" {'predicted':>10} {'measured':>10} {'memory':>7} {'host':>6} {'idle':>6} {'mfu':>6}"
    texts = [head]
    for figures in rows:
        unit = figures["unit"]
        ours, theirs = (figures[f"{who}_{unit}_per_s"] for who in ("millrace", "torch"))
        texts.append(
            f"{figures['model']:12} {_cell(figures['batch'], 'd', 5)} {_cell(ours, ',.0f', 10)} "
            f"{_cell(theirs, ',.0f', 10)} {_cell(figures['ratio'], '.3f', 6)} "
            f"{_cell(figures['eager_ratio'], '.3f', 6)} {_ms(figures['predicted_s'])} "
            f"{_ms(figures['measured_s'])} {_cell(figures['memory_ratio'], '.2f', 7)} "
            f"{_cell(figures['host_share'], '.1%', 6)} {_cell(figures['idle_share'], '.1%', 6)} "
            f"{_cell(figures['mfu'], '.1%', 6)}"
        )
        if figures["deterministic_price"] is not None:
            bits = "equal" if figures["bit_equal"] else "DIFFERENT"
            price = _cell(figures["torch_deterministic_price"], "+.1%", 1)
            texts.append(
                f"{'':12} deterministic mode costs {figures['deterministic_price']:+.1%} (torch: "
                f"{price}); captured and eagerly it gives {bits} bits"
            )
        if figures["losses_apart"] is not None:
            spread = _cell(figures["torch_losses_apart"], ".1e", 1)
            texts.append(
                f"{'':12} losses apart by {figures['losses_apart']:.1e} (PyTorch's: {spread})"
            )
        if figures["error"]:
            texts.append(f"{'':12} {figures['error']}")
    return texts


def lines_without_times(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Line per row of what an emulated device can show: its clock is none."""
    texts = []
    for figures in rows:
        losses = "losses are not compared"
        if figures["losses_apart"] is not None:
            losses = f"losses apart by {figures['losses_apart']:.1e}"
        bits = {True: "equal bits", False: "DIFFERENT bits", None: "bits are not known"}
        ended = "ok" if figures["ok"] else figures["error"] or "failed"
        texts.append(f"  {figures['model']}: {ended}; {losses}; {bits[figures['bit_equal']]}")
    return texts


def markdown(rows: Iterable[Mapping[str, Any]]) -> str:
    """Table of a README in Markdown: each line of it is of one run on one device."""
    texts = [
        "| model, batch × tokens | ours | PyTorch's best | ratio | step | predicted | bound "
        "| losses apart (PyTorch's own) |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for figures in rows:
        ours, theirs = (figures[f"{who}_{figures['unit']}_per_s"] for who in ("millrace", "torch"))
        timed = [each for each in figures["torch_tried"] if "step_s" in each]
        compiled = any(each["setting"]["compiled"] for each in timed)
        bound_s = sum(kind["bound_s"] for kind in figures["kinds"] or ()) or None
        best = f"{theirs:,.0f} (of {len(timed)}{'' if compiled else ', eager'})" if theirs else "-"
        cells = (
            f"{figures['model']}, {figures['batch']} × {figures['seq_len']}",
            f"{_cell(ours, ',.0f', 1)} {figures['unit']}/s",
            best,
            _cell(figures["ratio"], ".2f", 1),
            *(
                _ms(seconds).strip()
                for seconds in (figures["measured_s"], figures["predicted_s"], bound_s)
            ),
            "{} ({})".format(
                *(_cell(figures[name], ".1g", 1) for name in ("losses_apart", "torch_losses_apart"))
            ),
        )
        texts.append(f"| {' | '.join(cells)} |")
    return "\n".join(texts)


def _cell(value: float | None, how: str, width: int) -> str:
    return f"{'-' if value is None else format(value, how):>{width}}"


def _ms(seconds: float | None) -> str:
    return _cell(None if seconds is None else seconds * 1e3, ".2f", 7) + " ms"
