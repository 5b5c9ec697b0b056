"""Narrowing: the same tables with fewer options, and only the states that these reach."""

import numpy as np

from planner.search.tables import Choice, Ints, Net, Tables, Use


def compact(tables: Tables, keep: list[Ints]) -> Tables:
    """The same tables with only some options of each choice, and only the states they reach."""
    choices = tuple(
        Choice(
            ops=choice.ops,
            options=tuple(choice.options[i] for i in kept),
            figures=choice.figures[kept],
            count=choice.count,
        )
        for choice, kept in zip(tables.choices, keep, strict=True)
    )
    nets = []
    for net in tables.nets:
        rows, makes = np.unique(net.makes[keep[net.producer]], return_inverse=True)
        wants = [use.wants[keep[use.choice]] for use in net.uses]
        columns = np.unique(np.concatenate(wants))
        nets.append(
            Net(
                tensor=net.tensor,
                side=net.side,
                producer=net.producer,
                sources=tuple(net.sources[a] for a in rows),
                makes=makes.astype(np.int64),
                targets=tuple(net.targets[b] for b in columns),
                uses=tuple(
                    Use(choice=use.choice, wants=np.searchsorted(columns, want), holds=use.holds)
                    for use, want in zip(net.uses, wants, strict=True)
                ),
                reachable=net.reachable[np.ix_(rows, columns)],
                figures=net.figures[np.ix_(rows, columns)],
                held=net.held[columns],
                count=net.count,
            )
        )
    return Tables(axis_sizes=tables.axis_sizes, choices=choices, nets=tuple(nets))


def reachable_options(tables: Tables) -> list[Ints]:
    """Options that some options of every neighbour can be boxed to or from."""
    keep = [np.ones(len(choice.options), np.bool_) for choice in tables.choices]
    changed = True
    while changed:
        changed = False
        for net in tables.nets:
            for use in net.uses:
                made, wanted = keep[net.producer], keep[use.choice]
                sources = np.isin(np.arange(len(net.sources)), net.makes[made])
                targets = np.isin(np.arange(len(net.targets)), use.wants[wanted])
                from_here = np.any(net.reachable & targets, axis=1)[net.makes]
                to_here = np.any(net.reachable & sources[:, None], axis=0)[use.wants]
                for mask, good in ((made, from_here), (wanted, to_here)):
                    if (mask & ~good).any():
                        mask &= good
                        changed = True
    return [np.flatnonzero(mask) for mask in keep]
