"""PMI server: what MPICH asks of whoever starts its processes, as a sans-IO state machine.

PMI-1 is lines of `key=value` words over a socket that a process inherits (`PMI_FD`): processes put
keys with their addresses, come to barriers, and get the keys of others (Balaji et al., "PMI: a
scalable parallel process-management interface for extreme-scale systems", 2010; the requests that
MPICH 5.0 makes were read off its own `mpiexec` in 2026-11).
"""

from collections.abc import Callable, Sequence
from secrets import token_hex

Replies = list[tuple[int, str]]

LENGTHS = "kvsname_max=256 keylen_max=64 vallen_max=1024"


class PmiServer:
    """Server of all ranks of a run.

    Parameters
    ----------
    ranks_by_host
        Number of ranks on every host, in the order of the ranks.

    Attributes
    ----------
    aborted
        Ranks that have asked for the end of all, in the order in which they did.
    """

    def __init__(self, ranks_by_host: Sequence[int]) -> None:
        self._ranks = sum(ranks_by_host)
        # MPICH names its shared memory after the store of keys: no two jobs may have one name.
        self._name = f"millrace_{token_hex(8)}"
        self._values = {"PMI_process_mapping": process_mapping(ranks_by_host)}
        self._waiting: list[int] = []
        self.aborted: list[int] = []
        self._commands: dict[str, Callable[[int, dict[str, str]], Replies]] = {
            "init": self._init,
            "get_maxes": lambda rank, words: [(rank, f"cmd=maxes {LENGTHS}")],
            "get_appnum": lambda rank, words: [(rank, "cmd=appnum appnum=0")],
            "get_universe_size": lambda rank, words: [
                (rank, f"cmd=universe_size size={self._ranks}")
            ],
            "get_my_kvsname": lambda rank, words: [(rank, f"cmd=my_kvsname kvsname={self._name}")],
            "put": self._put,
            "get": self._get,
            "barrier_in": self._barrier,
            "finalize": lambda rank, words: [(rank, "cmd=finalize_ack")],
            "abort": self._abort,
        }

    def request(self, rank: int, line: str) -> Replies:
        """Lines to send, by rank, after a rank has sent a line.

        Parameters
        ----------
        rank
            Who sent it.
        line
            The line without its end.
        """
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        command = words.get("cmd", "")
        if command not in self._commands:
            return [(rank, f"cmd={command}_result rc=-1 msg=unknown_command")]
        return self._commands[command](rank, words)

    def _init(self, rank: int, words: dict[str, str]) -> Replies:
        return [(rank, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0")]

    def _put(self, rank: int, words: dict[str, str]) -> Replies:
        self._values[words["key"]] = words["value"]
        return [(rank, "cmd=put_result rc=0 msg=success")]

    def _get(self, rank: int, words: dict[str, str]) -> Replies:
        value = self._values.get(words["key"])
        if value is None:
            return [(rank, "cmd=get_result rc=-1 msg=key_not_found value=unknown")]
        return [(rank, f"cmd=get_result rc=0 msg=success value={value}")]

    def _barrier(self, rank: int, words: dict[str, str]) -> Replies:
        self._waiting.append(rank)
        if len(self._waiting) < self._ranks:
            return []
        released, self._waiting = self._waiting, []
        return [(member, "cmd=barrier_out rc=0") for member in released]

    def _abort(self, rank: int, words: dict[str, str]) -> Replies:
        self.aborted.append(rank)
        return []


def process_mapping(ranks_by_host: Sequence[int]) -> str:
    """Placement of ranks on hosts as MPICH reads it: (first host, hosts, ranks a host) in a row.

    Examples
    --------
    >>> process_mapping([2, 2, 1])
    '(vector,(0,2,2),(2,1,1))'
    """
    blocks: list[list[int]] = []
    for host, ranks in enumerate(ranks_by_host):
        if blocks and blocks[-1][2] == ranks:
            blocks[-1][1] += 1
        else:
            blocks.append([host, 1, ranks])
    return f"(vector,{','.join('({},{},{})'.format(*block) for block in blocks)})"
