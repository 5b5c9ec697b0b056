"""Restriction: the tables of one block alone, beside choices elsewhere that only join its nets."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from millrace.planner.search.blocks.states import Ints
from millrace.planner.search.blocks.tables import FIGURES, Choice, Net, Tables


def block_tables(tables: Tables, block: Sequence[int]) -> Tables:
    """Tables of some choices, with what these are handed in the ways that `legal` leaves.

    A net counts in the block of its first reader, as in `reading.template_figures`. Choices
    elsewhere that make such a net, or read it too, cost nothing here; all legal options that join
    it in the same states come down to one.

    Parameters
    ----------
    tables : Tables
        With one row.
    block : sequence of int

    Returns
    -------
    Tables
        First the choices of the block, in this order, then one for each other choice at its nets.
    """
    nets = [net for net in tables.nets if net.uses[0].choice in block]
    ends = {end for net in nets for end in (net.producer, *(use.choice for use in net.uses))}
    choices = [tables.choices[at] for at in block]
    place = {at: number for number, at in enumerate(block)}
    for other in sorted(ends - set(block)):
        ways, nets = _joining(tables.choices[other], nets, other)
        place[other] = len(choices)
        choices.append(ways)
    return Tables(
        choices=tuple(choices),
        nets=tuple(
            replace(
                net,
                producer=place[net.producer],
                uses=tuple(replace(use, choice=place[use.choice]) for use in net.uses),
            )
            for net in nets
        ),
    )


def _joining(choice: Choice, nets: Sequence[Net], at: int) -> tuple[Choice, list[Net]]:
    """The ways in which legal options of choice `at` join nets, and the nets by these ways."""
    legal = np.flatnonzero(choice.legal[:, 0])
    states = [net.makes for net in nets if net.producer == at]
    states += [use.wants for net in nets for use in net.uses if use.choice == at]
    _, first = np.unique(np.array(states)[:, legal], axis=1, return_index=True)
    ways: Ints = legal[first]
    joining = Choice(
        figures=np.zeros((len(FIGURES), len(ways), 1), np.int64),
        legal=np.ones((len(ways), 1), np.bool_),
        options=choice.options[ways],
        count=1,
    )
    return joining, [
        replace(
            net,
            makes=net.makes[ways] if net.producer == at else net.makes,
            uses=tuple(
                replace(use, wants=use.wants[ways]) if use.choice == at else use for use in net.uses
            ),
        )
        for net in nets
    ]
