"""Single changes of a job: one choice made otherwise, and what follows from that by itself."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from millrace.planner.frameworks.capabilities import DEGREES, MODES, Capabilities
from millrace.planner.schedules import SCHEDULES
from millrace.planner.search import Pins
from millrace.trainers.job import TrainingJob

FACTORS = (2, 0.5)
PLAIN = "1f1b"
INTERLEAVED = f"interleaved-{PLAIN}"
FEW, MANY = 1, 8  # chunks of a stage that are tried
# Devices that one degree gives up, another takes; the first of a pair is named.
EXCHANGES = (("tp", "dp"), ("pp", "dp"), ("cp", "dp"), ("tp", "pp"), ("tp", "cp"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleChange:
    """Change of one choice of a job.

    Attributes
    ----------
    choice : str
        The choice, by its pin's name, or as the software is set.
    before, after : str
        Its values.
    job : TrainingJob
        The job with it.
    """

    choice: str
    before: str
    after: str
    job: TrainingJob

    @property
    def text(self) -> str:
        """The change in a few words."""
        return f"{self.choice} {self.before} → {self.after}"


def single_changes(job: TrainingJob, runs: Capabilities) -> tuple[SingleChange, ...]:
    """Changes of one choice each that a framework can run, in the order of choices.

    Parameters
    ----------
    job : TrainingJob
        As it runs, with all degrees pinned.
    runs : Capabilities
        What its framework can run.
    """
    makers = (_micro_batches, _recomputations, _levels, _switches, _chunks, _degrees, _experts)
    changes = [change for maker in makers for change in maker(job, runs)]
    return (*changes, *_software(job, runs))


def _changed(job: TrainingJob, choice: str, value: object, **others: object) -> SingleChange:
    before = getattr(job.pins, choice)
    pins = Pins.of({**job.pins.document, choice: value, **others})
    return SingleChange(
        choice=choice, before=_shown(before), after=_shown(value), job=replace(job, pins=pins)
    )


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _micro_batches(job: TrainingJob, runs: Capabilities) -> Iterator[SingleChange]:
    size, replicas = job.pins.micro_batch or 1, job.pins.dp or 1
    for factor in FACTORS:
        changed = size * factor
        if changed >= 1 and job.global_batch % (int(changed) * replicas) == 0:
            yield _changed(job, "micro_batch", int(changed))


def _recomputations(job: TrainingJob, runs: Capabilities) -> Iterator[SingleChange]:
    for mode in MODES:
        if mode in runs.recompute and (mode != job.pins.recompute or job.recompute_layers):
            change = _changed(job, "recompute", mode)
            yield replace(change, job=replace(change.job, recompute_layers=0))


def _levels(job: TrainingJob, runs: Capabilities) -> Iterator[SingleChange]:
    if (job.pins.dp or 1) * (job.pins.cp or 1) == 1:
        return
    for level in runs.levels(job.pins.pp or 1):
        if level != str(job.pins.zero or 0):
            yield _changed(job, "zero", level if level == "3-hybrid" else int(level))


def _switches(job: TrainingJob, runs: Capabilities) -> Iterator[SingleChange]:
    pins = job.pins
    if (pins.tp or 1) > 1 and runs.sequence_parallel != "never" and not pins.sequence_parallel:
        yield _changed(job, "sequence_parallel", True)
    if (pins.cp or 1) > 1 and runs.ring:
        yield _changed(job, "ring", not pins.ring)


def _chunks(job: TrainingJob, runs: Capabilities) -> Iterator[SingleChange]:
    """Yield other numbers of chunks, with the schedule that they take; then other schedules."""
    stages, layers = job.pins.pp or 1, int(job.model.config["layers"])  # type: ignore[arg-type]
    if stages == 1:
        return
    chunks, schedule = job.pins.interleave or 1, job.pins.schedule or PLAIN
    if runs.has_schedule(INTERLEAVED) and schedule in (PLAIN, INTERLEAVED):
        for factor in FACTORS:
            changed = int(chunks * factor)
            if FEW <= changed <= MANY and layers % (stages * changed) == 0:
                name = INTERLEAVED if changed > 1 else PLAIN
                change = _changed(job, "interleave", changed, schedule=name)
                yield replace(change, job=replace(change.job, chunk_layers=()))
    for name in runs.schedules or tuple(SCHEDULES):
        if name != schedule and not SCHEDULES[name].interleaves and chunks == 1:
            yield _changed(job, "schedule", name)


def _degrees(job: TrainingJob, runs: Capabilities) -> Iterator[SingleChange]:
    for name, other in EXCHANGES:
        if name not in runs.degrees or other not in runs.degrees:
            continue
        for factor in FACTORS:
            degree = (getattr(job.pins, name) or 1) * factor
            partner = (getattr(job.pins, other) or 1) / factor
            if degree >= 1 and partner >= 1 and degree == int(degree) and partner == int(partner):
                change = _exchanged(job, name, int(degree), other, int(partner))
                if change is not None:
                    yield change


def _exchanged(
    job: TrainingJob, name: str, degree: int, other: str, partner: int
) -> SingleChange | None:
    """Change of two degrees; None where batch or layers do not divide, or experts do not fit."""
    document: dict[str, Any] = {**job.pins.document, name: degree, other: partner}
    degrees = {role: int(document.get(role, 1)) for role in (*DEGREES, "etp")}
    layers = int(job.model.config["layers"])  # type: ignore[arg-type]
    if job.global_batch % ((job.pins.micro_batch or 1) * degrees["dp"]):
        return None
    chunks = int(document.get("interleave", 1)) if degrees["pp"] > 1 else 1
    if degrees["pp"] > layers or (chunks > 1 and layers % (degrees["pp"] * chunks)):
        return None
    if degrees["tp"] > job.devices_per_node >= (job.pins.tp or 1):
        return None
    document = _consistent(document, degrees)
    if (degrees["dp"] * degrees["cp"] * degrees["tp"]) % (degrees["ep"] * document.get("etp", 1)):
        return None
    stages = (job.pins.pp or 1) * (job.pins.interleave or 1)
    recomputed = -(-job.recompute_layers * stages // (degrees["pp"] * chunks))
    partners = {other: getattr(job.pins, other) or 1}
    return SingleChange(
        choice=f"{name} (with {other})",
        before=f"{getattr(job.pins, name) or 1} ({partners[other]})",
        after=f"{degree} ({partner})",
        job=replace(job, pins=Pins.of(document), chunk_layers=(), recompute_layers=recomputed),
    )


def _consistent(document: Mapping[str, Any], degrees: Mapping[str, int]) -> dict[str, Any]:
    """Pins without those that have no meaning at their degrees, and with those that need one."""
    pins = dict(document)
    if degrees["pp"] == 1:
        pins.pop("schedule", None)
        pins.pop("interleave", None)
    elif "schedule" not in pins:
        pins |= {"schedule": PLAIN, "interleave": 1}
    if degrees["tp"] == 1:
        pins.pop("sequence_parallel", None)
        pins.pop("etp", None)
    else:
        pins.setdefault("sequence_parallel", True)
        if "etp" in pins:
            pins["etp"] = min(degrees["etp"], degrees["tp"])
    if degrees["cp"] == 1:
        pins.pop("ring", None)
    if degrees["dp"] * degrees["cp"] == 1:
        pins.pop("zero", None)
    return pins


def _experts(job: TrainingJob, runs: Capabilities) -> Iterator[SingleChange]:
    pins = job.pins
    if pins.ep is None:
        return
    ranks = (pins.dp or 1) * (pins.cp or 1) * (pins.tp or 1)
    experts = int(job.model.config["experts"])  # type: ignore[arg-type]
    for factor in FACTORS:
        degree = int(pins.ep * factor)
        if degree >= 1 and experts % degree == 0 and ranks % (degree * (pins.etp or 1)) == 0:
            yield _changed(job, "ep", degree)
    for name in runs.dispatchers:
        if name != pins.dispatcher:
            yield _changed(job, "dispatcher", name)
    if runs.expert_overlap:
        yield _changed(job, "expert_overlap", not pins.expert_overlap)


def _software(job: TrainingJob, runs: Capabilities) -> Iterator[SingleChange]:
    """Yield what the software is set without, set as its framework usually is."""
    names = {
        "overlap": "collectives beside computation",
        "tensor_overlap": "tensor-parallel collectives beside products",
    }
    for word, meaning in names.items():
        if job.software.get(word) == "0":
            rest = {name: value for name, value in job.software.items() if name != word}
            changed = replace(job, software=rest)
            yield SingleChange(choice=meaning, before="off", after="on", job=changed)
    if job.software.get("gradient_bytes", "") != "2" and (job.pins.dp or 1) > 1:
        narrow = replace(job, software={**job.software, "gradient_bytes": "2"})
        yield SingleChange(
            choice="bytes of a gradient on its way", before="4", after="2", job=narrow
        )
