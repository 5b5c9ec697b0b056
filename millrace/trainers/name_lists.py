"""Lists of names in messages, as long as a sentence bears them."""

from collections.abc import Sequence

NAMES_MAX = 8


def listed(names: Sequence[str]) -> str:
    """Names joined by commas; of many, the first and how many more there are.

    Parameters
    ----------
    names : sequence of str
        In their order.

    Examples
    --------
    >>> listed(["stage", "device"]), listed([f"s{n}" for n in range(10)])
    ('stage, device', 's0, s1, s2, s3, s4, s5, s6, s7 and 2 more')
    """
    further = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {further} more" if further > 0 else "")
