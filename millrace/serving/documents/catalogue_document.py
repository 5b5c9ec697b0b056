"""Catalogue document of a page: all that can be chosen, and the colours that pictures share."""

from functools import cache
from typing import Any

from millrace.models.builder import PRECISIONS
from millrace.palette import HUES, LIGHT, MEMORY_KINDS, PHASES
from millrace.planner.frameworks.capabilities import DISPATCHERS, MODES
from millrace.planner.memory import DEFAULT_RESERVE
from millrace.planner.schedules import SCHEDULES
from millrace.reporting.bars import HOST, LAUNCH, MOVING
from millrace.serving import questions
from millrace.serving.sliders import SLIDERS
from millrace.units import format_percent


@cache
def catalogue_document() -> dict[str, Any]:
    """Models, devices, networks, frameworks and closed words, with the bounds of a question."""
    from millrace.models.zoo.catalogue import NAMES
    from millrace.planner.clusters import names, reference_node
    from millrace.planner.clusters.cluster_files import canonical
    from millrace.planner.clusters.fabrics import fabrics
    from millrace.planner.frameworks.framework_tables import frameworks

    nodes = [(name, reference_node(name)) for name in names()]
    short = {name.partition("-")[0] for name, _ in nodes}
    return {
        "models": list(NAMES),
        "devices": [
            {
                "name": name,
                "devices_per_node": node.devices_per_node,
                "memory_bytes": node.device.memory_bytes,
                "precisions": list(node.device.flops_per_s),
                "price_usd_per_hour": node.device.price_usd_per_hour,
            }
            for name, node in nodes
            if node.cores_per_node is None and not name.startswith("cpu-")
        ],
        "aliases": {text: canonical(text) for text in sorted(short - {"cpu"})},
        "networks": [fabric.name for fabric in fabrics().values() if not fabric.inside],
        "frameworks": list(dict.fromkeys([*frameworks(), "any"])),
        "precisions": list(PRECISIONS),
        "schedules": list(SCHEDULES),
        "dispatchers": list(DISPATCHERS),
        "recompute": list(MODES),
        "zero": ["0", "1", "2", "3", "3-hybrid"],
        "reserve": format_percent(DEFAULT_RESERVE.fraction),
        "bounds": {
            "devices": questions.DEVICES_MAX,
            "global_batch": questions.BATCH_MAX,
            "seq_len": questions.SEQ_LEN_MAX,
        },
        "sliders": SLIDERS,
        "colours": {
            "phases": {phase: HUES[hue] for phase, hue in PHASES.items()},
            "memory": {kind: HUES[hue] for kind, hue in MEMORY_KINDS.items()},
            "moving": [HUES[hue] for hue in MOVING],
            "waiting": {LAUNCH: HUES[HOST], "bubble": LIGHT.mist},
        },
    }
