"""Random bits from a counter: the same for the same counter and key, in whatever order.

Philox-4x32-10 turns a counter of four 32-bit words and a key of two into four random words.

Notes
-----
Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3:
the round, and the constants below (table 2 and the text after it).
"""

from collections.abc import Sequence
from hashlib import sha256

import numpy as np

from millrace.executor.kernels.context import Array

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # The key grows by these from round to round.
_WORD = 0xFFFFFFFF

Key = tuple[int, int]


def key_of(seed: int, name: str) -> Key:
    """Key of a stream: 64 bits of the SHA-256 of seed and name."""
    digest = sha256(f"{seed} {name}".encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def philox(words: Sequence[Array], key: Key, spare: Sequence[Array]) -> None:
    """Replace counters by random words, in place.

    Parameters
    ----------
    words
        Four uint64 arrays of one shape, each holding 32-bit words of the counters; afterwards the
        random words, 32 bits each.
    key
        Two 32-bit words.
    spare
        Two more such arrays, which are spoiled.
    """
    word0, word1, word2, word3 = words
    left, right = spare
    first, second = key
    for _ in range(ROUNDS):
        np.multiply(word0, np.uint64(MULTIPLIERS[0]), out=left)
        np.multiply(word2, np.uint64(MULTIPLIERS[1]), out=right)
        # the high halves of the products cross over, mixed with the other words and the key
        np.right_shift(right, np.uint64(32), out=word0)
        np.bitwise_xor(word0, word1, out=word0)
        np.bitwise_xor(word0, np.uint64(first), out=word0)
        np.right_shift(left, np.uint64(32), out=word2)
        np.bitwise_xor(word2, word3, out=word2)
        np.bitwise_xor(word2, np.uint64(second), out=word2)
        np.bitwise_and(right, np.uint64(_WORD), out=word1)
        np.bitwise_and(left, np.uint64(_WORD), out=word3)
        first, second = (first + WEYL[0]) & _WORD, (second + WEYL[1]) & _WORD
