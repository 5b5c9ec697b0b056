"""Restriction: the tables of one block alone, whose neighbours only hand tensors to it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from millrace.planner.search.blocks.states import Ints
from millrace.planner.search.blocks.tables import FIGURES, Choice, Net, Tables


def block_tables(tables: Tables, block: Sequence[int]) -> Tables:
    """Tables of some choices, and of how other choices hand on what these read.

    Boxing counts where it is read. How tensors are to be handed on is said by `legal`: options of
    other choices that are legal and make the same come down to one, which costs nothing.

    Parameters
    ----------
    tables : Tables
        With one row; the readers of a net are all in the block or all outside.
    block : sequence of int

    Returns
    -------
    Tables
        First the choices of the block, in this order, then one for each other that they read.
    """
    place = {choice: at for at, choice in enumerate(block)}
    nets = [net for net in tables.nets if net.uses[0].choice in place]
    makers = sorted({net.producer for net in nets} - set(place))
    choices = [tables.choices[at] for at in block]
    makes: dict[int, Ints] = {}
    for maker in makers:
        read = [net for net in nets if net.producer == maker]
        handed, sources = _handed(tables.choices[maker], read)
        place[maker] = len(choices)
        choices.append(handed)
        makes |= {net.number: source for net, source in zip(read, sources, strict=True)}
    return Tables(
        choices=tuple(choices),
        nets=tuple(
            replace(
                net,
                producer=place[net.producer],
                makes=makes.get(net.number, net.makes),
                uses=tuple(replace(use, choice=place[use.choice]) for use in net.uses),
            )
            for net in nets
        ),
    )


def _handed(choice: Choice, nets: Sequence[Net]) -> tuple[Choice, list[Ints]]:
    """The ways in which legal options make the tensors of these nets, and their sources."""
    legal = np.flatnonzero(choice.legal[:, 0])
    sources = np.array([net.makes[legal] for net in nets])
    distinct, first = np.unique(sources, axis=1, return_index=True)
    ways = Choice(
        figures=np.zeros((len(FIGURES), len(first), 1), np.int64),
        legal=np.ones((len(first), 1), np.bool_),
        options=choice.options[legal[first]],
        count=1,
    )
    return ways, list(distinct)
