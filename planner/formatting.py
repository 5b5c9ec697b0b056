"""Formatting of numbers in the planner's sentences. GiB and % exist only in text."""

UNITS = (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))


def size(count: float) -> str:
    """Write bytes in the largest unit that leaves at least one.

    Examples
    --------
    >>> size(3.1 * 2**30), size(150)
    ('3.1 GiB', '150 bytes')
    """
    for unit, scale in UNITS:
        if abs(count) >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count:.0f} bytes"


def limit_option(count: int) -> str:
    """Write bytes as `--memory-limit` reads them, rounded up to a hundredth of their unit.

    Examples
    --------
    >>> limit_option(95 * 2**30), limit_option(95 * 2**30 + 1)
    ('95GiB', '95.01GiB')
    """
    for unit, scale in UNITS:
        if count >= scale:
            hundredths = -(-count * 100 // scale)
            return f"{hundredths / 100:.2f}".rstrip("0").rstrip(".") + unit
    return str(count)


def percent(share: float) -> str:
    """Write a share of one with one decimal: `4.0 %`."""
    return f"{share * 100:.1f} %"


def duration(nanoseconds: float) -> str:
    """Write a duration with three digits, in seconds or milliseconds.

    Examples
    --------
    >>> duration(14.84e9), duration(3.271e7)
    ('14.8 s', '32.7 ms')
    """
    scale, unit = (1e9, "s") if nanoseconds >= 1e9 else (1e6, "ms")
    value = nanoseconds / scale
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def one_of(words: list[str]) -> str:
    """Join alternatives: `a, b or c`."""
    return " or ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def counted(number: int, plural: str) -> str:
    """Write a number with its noun, which is in the plural unless there is one.

    Parameters
    ----------
    number : int
        How many there are.
    plural : str
        The noun, and what follows it.

    Examples
    --------
    >>> counted(1, "samples of a microbatch"), counted(8192, "tokens")
    ('1 sample of a microbatch', '8,192 tokens')
    """
    first, _, rest = plural.partition(" ")
    noun = f"{first.removesuffix('s')} {rest}".strip() if number == 1 else plural
    return f"{number:,} {noun}"
