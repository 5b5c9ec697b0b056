"""Orders of schedules written down slot by slot, to hold the rules of `SCHEDULES` against."""

from collections.abc import Callable

from millrace.planner.schedules import Order, Slot


def gpipe(stage: int, stages: int, chunks: int, microbatches: int) -> Order:
    """All forwards, then all backwards (Huang et al., "GPipe", 2019, section 2.3)."""
    forward = [Slot("F", c, m) for c in range(chunks) for m in range(microbatches)]
    backward = [Slot("BW", c, m) for c in reversed(range(chunks)) for m in range(microbatches)]
    return (*forward, *backward)


def one_forward_one_backward(stage: int, stages: int, chunks: int, microbatches: int) -> Order:
    """Warm up, then one forward and one backward in turn (PipeDream-Flush; Narayanan 2021)."""
    warm_up = min(stages - stage - 1, microbatches)
    order = [Slot("F", 0, m) for m in range(warm_up)]
    for m in range(warm_up, microbatches):
        order += [Slot("F", 0, m), Slot("BW", 0, m - warm_up)]
    order += [Slot("BW", 0, m) for m in range(microbatches - warm_up, microbatches)]
    return tuple(order)


def eager_one_forward_one_backward(
    stage: int, stages: int, chunks: int, microbatches: int
) -> Order:
    """1F1B with twice the warm-up (Zhuang et al. 2023, section 4)."""
    warm_up = 2 * (stages - stage - 1)
    order = [Slot("F", 0, m) for m in range(warm_up)]
    for m in range(microbatches):
        order += [Slot("F", 0, m + warm_up), Slot("BW", 0, m)]
    return _without_missing(order, microbatches)


def interleaved(stage: int, stages: int, chunks: int, microbatches: int) -> Order:
    """Several chunks a stage, in rounds of `stages` microbatches (Narayanan 2021, section 2.2).

    A last round of fewer microbatches is a full one without those that are missing.
    """
    rounded = -(-microbatches // stages) * stages
    total = rounded * chunks
    forward = [_interleaved_slot("F", k, stages, chunks) for k in range(total)]
    backward = [_interleaved_slot("BW", k, stages, chunks) for k in range(total)]
    warm_up = min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)
    order = forward[:warm_up]
    for k in range(warm_up, total):
        order += [forward[k], backward[k - warm_up]]
    order += backward[total - warm_up :]
    return _without_missing(order, microbatches)


def _without_missing(order: list[Slot], microbatches: int) -> Order:
    """The order without microbatches that a step does not have."""
    return tuple(slot for slot in order if slot.microbatch < microbatches)


def _interleaved_slot(part: str, k: int, stages: int, chunks: int) -> Slot:
    lap, rest = divmod(k, stages * chunks)
    chunk, within = divmod(rest, stages)
    return Slot(part, chunks - 1 - chunk if part == "BW" else chunk, lap * stages + within)


def zero_bubble_h1(stage: int, stages: int, chunks: int, microbatches: int) -> Order:
    """1F1B, with weight gradients moved into the bubble (Qi et al. 2023, section 2.2)."""
    warm_up = min(stages - stage - 1, microbatches)
    order = [Slot("F", 0, m) for m in range(warm_up)]
    deferred = min(stage, microbatches)
    weights = 0
    for m in range(microbatches):
        if m + warm_up < microbatches:
            order.append(Slot("F", 0, m + warm_up))
        order.append(Slot("B", 0, m))
        if m >= deferred:
            order.append(Slot("W", 0, weights))
            weights += 1
    order += [Slot("W", 0, m) for m in range(weights, microbatches)]
    return tuple(order)


def zero_bubble_v(stage: int, stages: int, chunks: int, microbatches: int) -> Order:
    """Two chunks a stage that mirror each other (Qi et al. 2023, section 6)."""
    # The rest keeps a full pipeline busy; fewer microbatches than fill it are left out of it.
    full = max(2 * stages - 1, microbatches)
    order: list[Slot] = []
    done = dict.fromkeys([(part, chunk) for part in "FBW" for chunk in (0, 1)], 0)

    def run(part: str, chunk: int) -> None:
        if done[part, chunk] < full:
            order.append(Slot(part, chunk, done[part, chunk]))
            done[part, chunk] += 1

    def repeated(count: int, pieces: str) -> None:
        for _ in range(count):
            for piece in pieces.split():
                run(piece[0], int(piece[1]))

    repeated(2 * (stages - stage) - 1, "F0")
    repeated(stage, "F1 F0")
    repeated(stages - stage, "F1 B1 W1")
    repeated(full - done["F", 1], "F0 B0 W0 F1 B1 W1")
    repeated(stage, "B0 B1")
    repeated(stages - stage, "B0 W0")
    repeated(full - done["W", 1], "W1")
    repeated(full - done["W", 0], "W0")
    return _without_missing(order, microbatches)


def dualpipe_v(stage: int, stages: int, chunks: int, microbatches: int) -> Order:
    """The eight steps of DeepSeek's dualpipev.py (2025); what runs beside comes after.

    `B0` alone leaves its gradients of weights for later; `W` takes the oldest of those.
    """
    full = max(microbatches, 2 * stages)
    order: list[Slot] = []
    done = {(part, chunk): 0 for part in "FB" for chunk in range(2)}
    later: list[tuple[int, int]] = []

    def run(piece: str, deferring: bool) -> None:
        if piece == "W":
            order.append(Slot("W", *later.pop(0)))
            return
        part, chunk = piece[0], int(piece[1])
        number = done[part, chunk]
        done[part, chunk] += 1
        order.append(Slot(part, chunk, number))
        if part == "B" and deferring:
            later.append((chunk, number))
        elif part == "B":
            order.append(Slot("W", chunk, number))

    def repeated(count: int, pieces: str, deferring: bool = False) -> None:
        for _ in range(count):
            for piece in pieces.split():
                run(piece, deferring)

    behind, ahead = stages - stage - 1, stage + 1
    repeated(2 * behind, "F0")
    repeated(ahead, "F0 F1")
    repeated(behind, "B1 F1")
    repeated(full - 2 * stages + ahead, "F0 B1 F1 B0")
    repeated(behind, "B1 F1 B0")
    for number in range(2 * ahead):
        repeated(1, ("B1", "B0")[number % 2], number >= ahead)
    repeated(behind, "W B0", True)
    repeated(ahead, "W")
    return _without_missing(order, microbatches)


SPELLED: dict[str, Callable[[int, int, int, int], Order]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved-1f1b": interleaved,
    "zb-h1": zero_bubble_h1,
    "zb-v": zero_bubble_v,
    "eager-1f1b": eager_one_forward_one_backward,
    "dualpipe-v": dualpipe_v,
}
