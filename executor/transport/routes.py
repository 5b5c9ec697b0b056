"""Routes: the steps by which one member of a meeting gives and receives its data.

What a member receives is cut into pieces, one for each member that has it first, and pieces into
chunks. A piece that is reduced is sent to the member that *has* it, added there in the order of
`reductions.py`, and handed on from there. Members on one host read each other's registers; over the
network go chunks:

* The ranks of a host add up what they send before one of them, the *speaker* of that piece, sends
  it on, as far as the order of additions allows.
* What a host's ranks all receive is sent to one of them, the piece's *listener*; the others copy.

So each byte crosses the network once per host, and nobody but who reads this file knows who gets it
from whom. A step needs others to be over, and messages between two members are sent, and awaited,
in the order of the steps, so that they need no number. Nothing here knows arrays, MPI or time.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from millrace.executor.transport.meeting_pieces import (
    CHUNK_BYTES,
    SMALL_BYTES,
    Cut,
    Index,
    Party,
    Piece,
    chunk_shape,
    is_contiguous,
    pieces_of,
)
from millrace.executor.transport.reductions import Span, spans_of

WINDOW = 4  # chunks under way between two members in one direction of a meeting
JOIN, HAND_ON = 0, 1  # streams: of what is to be reduced, and of pieces

_Steps = tuple[int, ...]


class Do(IntEnum):
    """Kind of a step: what its member does, or waits for."""

    SEND = 0  # a place, to a member
    RECEIVE = 1  # a place, from a member
    REDUCE = 2  # several places into one
    TELL = 3  # members of this host a word
    HEAR = 4  # one from members of this host
    END = 5


class Word(IntEnum):
    """Word between members on one host: what the one that says it has done in this firing."""

    CAME = 0  # its registers may be read
    REDUCED = 1  # the pieces that it has first, or listens for, are where they belong
    READ = 2  # it reads no other's register any more


class Store(IntEnum):
    """Memory that a place lies in."""

    SENT = 0  # the register that a member sends
    RECEIVED = 1  # the one that it receives in
    STAGING = 2  # a buffer of this rank, for one chunk


class Place(NamedTuple):
    """Chunk of a register of some member, or buffer number `member` of this rank, of a `shape`."""

    store: Store
    part: int
    member: int
    cut: Cut = Cut()
    region: Index = ()
    shape: tuple[int, ...] = ()


class Step(NamedTuple):
    """Step of a route.

    `needs` are the steps that are over before it begins, `after` is one that has begun (-1: none).
    `peers` are positions of members, `stream` tells messages between two members apart.
    """

    do: Do
    needs: tuple[int, ...] = ()
    after: int = -1
    peers: tuple[int, ...] = ()
    stream: int = 0
    word: Word = Word.CAME
    target: Place | None = None
    sources: tuple[Place, ...] = ()
    spans: tuple[Span, ...] = ()
    reduction: str = "sum"


def route(
    party: Party, *, chunk_bytes: int = CHUNK_BYTES, small_bytes: int = SMALL_BYTES
) -> tuple[Step, ...]:
    """Steps of one member of a meeting, each behind those that it needs.

    If members of its host read what it sends, the first step tells them that it has come.

    Parameters
    ----------
    party
        The member and its group.
    chunk_bytes
        The most that is sent in one message.
    small_bytes
        An all_reduce below this is added up by every member for itself.
    """
    parts = range(len(party.shapes))
    pieces = [piece for part in parts for piece in pieces_of(party, part, chunk_bytes, small_bytes)]
    return _Writer(party).steps(pieces)


def _place(store: Store, piece: Piece, member: int, chunk: Index | None = None) -> Place:
    cut = piece.sent if store is Store.SENT else piece.received
    return Place(store, piece.part, member, cut, piece.region if chunk is None else chunk)


class _RegisterRead(NamedTuple):
    """Reading of a register: the member that reads it, and the one whose it is."""

    reader: int
    giver: int


def _readers(reads: Collection[_RegisterRead], giver: int) -> tuple[int, ...]:
    return tuple(sorted(read.reader for read in reads if read.giver == giver))


def _givers(reads: Collection[_RegisterRead], reader: int) -> tuple[int, ...]:
    return tuple(sorted(read.giver for read in reads if read.reader == reader))


@dataclass(slots=True)
class _Stream:
    """Messages to or from a member while they are written down.

    `over` are, by chunk, the steps after which its buffers are free again.
    """

    peer: int
    stream: int
    last: int = -1
    over: list[tuple[int, ...]] = field(default_factory=list)
    buffers: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def free(self) -> tuple[int, ...]:
        """Steps that the next chunk's messages need."""
        return self.over[-WINDOW] if len(self.over) >= WINDOW else ()


class _Writer:
    """Steps of a route while they are written down."""

    def __init__(self, party: Party) -> None:
        self._party, self._me = party, party.position
        self._here = party.hosts[party.position]
        self._neighbours = party.on_host(self._here)
        self._steps: list[Step] = []
        self._streams: dict[tuple[Do, int, int], _Stream] = {}
        self._buffers = 0
        self._came: tuple[int, ...] = ()
        self._placed: list[int] = []  # steps that bring pieces where neighbours look for them
        self._reads: list[int] = []  # steps that read a neighbour's register

    def steps(self, pieces: Sequence[Piece]) -> tuple[Step, ...]:
        """Write all steps."""
        reads = self._reads_of_sent(pieces)
        copies = self._reads_of_received(pieces)
        self._tell(Word.CAME, _readers(reads, self._me))
        self._came = self._hear(Word.CAME, _givers(reads, self._me))
        for piece in pieces:
            self._move(piece)
        told = self._tell(Word.REDUCED, _readers(copies, self._me), self._placed)
        heard = self._hear(Word.REDUCED, _givers(copies, self._me), told)
        for piece in pieces:
            if self._is_copied(piece) and self._me in piece.receivers:
                holder = self._holder(piece, self._here)
                if self._me != holder:
                    self._copy(piece, _place(Store.RECEIVED, piece, holder), heard)
        told = self._tell(Word.READ, _givers(reads | copies, self._me), self._reads)
        self._hear(Word.READ, _readers(reads | copies, self._me), told)
        self._add(Step(Do.END, tuple(range(len(self._steps)))))
        return tuple(self._steps)

    def _tell(self, word: Word, peers: tuple[int, ...], needs: Sequence[int] = ()) -> _Steps:
        return (self._add(Step(Do.TELL, tuple(needs), peers=peers, word=word)),) if peers else ()

    def _hear(self, word: Word, peers: tuple[int, ...], needs: _Steps = ()) -> _Steps:
        return (self._add(Step(Do.HEAR, needs, peers=peers, word=word)),) if peers else ()

    def _reads_of_sent(self, pieces: Sequence[Piece]) -> set[_RegisterRead]:
        """Members of this host that read what others of it send."""
        reads: set[_RegisterRead] = set()
        for piece in pieces:
            is_here = self._party.hosts[piece.owner] == self._here
            if piece.reduces:
                reader = piece.owner if is_here else self._party.speaker(self._here, piece.number)
                reads.update(_RegisterRead(reader, giver) for giver in self._neighbours)
            elif is_here:
                receivers = set(piece.receivers) & set(self._neighbours)
                reads.update(_RegisterRead(reader, piece.owner) for reader in receivers)
        return {read for read in reads if read.reader != read.giver}

    def _reads_of_received(self, pieces: Sequence[Piece]) -> set[_RegisterRead]:
        """Members of this host that copy what others of it have received."""
        return {
            _RegisterRead(reader, holder)
            for piece in pieces
            if self._is_copied(piece)
            for holder in (self._holder(piece, self._here),)
            for reader in piece.receivers
            if reader in self._neighbours and reader != holder
        }

    def _is_copied(self, piece: Piece) -> bool:
        """True if a member of this host copies the piece from where another receives it."""
        holder = self._holder(piece, self._here)
        if holder == piece.owner and not piece.reduces:
            return False  # they copy from where it is sent
        return any(member in self._neighbours and member != holder for member in piece.receivers)

    def _holder(self, piece: Piece, host: int) -> int:
        """Member of a host that has a piece before the others there: its owner or listener."""
        if self._party.hosts[piece.owner] == host:
            return piece.owner
        listeners = [m for m in piece.receivers if self._party.hosts[m] == host]
        return listeners[piece.number % len(listeners)] if listeners else -1

    def _move(self, piece: Piece) -> None:
        """Reduce a piece, hand it to the hosts of its receivers, and copy it from a neighbour."""
        hosts = self._party.hosts
        away = [host for host in dict.fromkeys(hosts) if host != hosts[piece.owner]]
        listeners = [m for m in (self._holder(piece, host) for host in away) if m >= 0]
        for chunk in piece.chunks:
            ready: tuple[int, ...] = ()
            if piece.reduces and self._me == piece.owner:
                ready = (self._join(piece, chunk, away),)
            elif piece.reduces and self._me == self._party.speaker(self._here, piece.number):
                self._speak(piece, chunk)
            if self._me == piece.owner:
                store = Store.RECEIVED if piece.reduces else Store.SENT
                for listener in listeners:
                    messages = self._stream(Do.SEND, listener, HAND_ON)
                    source = _place(store, piece, self._me, chunk)
                    messages.over.append((self._send(messages, piece, chunk, (source,), ready),))
            elif self._me in listeners:
                self._listen(piece, chunk)
        if not piece.reduces and self._me in piece.receivers and hosts[piece.owner] == self._here:
            self._copy(piece, _place(Store.SENT, piece, piece.owner), self._came)

    def _join(self, piece: Piece, chunk: Index, away: Sequence[int]) -> int:
        """Add up a chunk of a piece that this member has first."""
        terms: list[tuple[Span, Place]] = [
            ((member, member + 1), _place(Store.SENT, piece, member, chunk))
            for member in self._neighbours
        ]
        needs, streams = list(self._came), []
        for host in away:
            messages = self._stream(Do.RECEIVE, self._party.speaker(host, piece.number), JOIN)
            streams.append(messages)
            for number, span in enumerate(
                spans_of(self._party.on_host(host), len(self._party.hosts))
            ):
                buffer = self._buffer(messages, piece, chunk, number)
                needs.append(self._receive(messages, buffer))
                terms.append((span, buffer))
        terms.sort(key=lambda term: term[0])
        joined = self._add(
            Step(
                Do.REDUCE,
                tuple(needs),
                target=_place(Store.RECEIVED, piece, self._me, chunk),
                sources=tuple(place for _, place in terms),
                spans=tuple(span for span, _ in terms),
                reduction=self._party.reduction,
            )
        )
        for messages in streams:
            messages.over.append((joined,))
        self._reads.append(joined)
        self._placed.append(joined)
        return joined

    def _speak(self, piece: Piece, chunk: Index) -> None:
        """Send the owner of a piece what this host has for it, added up as far as can be."""
        messages = self._stream(Do.SEND, piece.owner, JOIN)
        sent = []
        for number, span in enumerate(spans_of(self._neighbours, len(self._party.hosts))):
            sources = tuple(_place(Store.SENT, piece, member, chunk) for member in range(*span))
            sent.append(self._send(messages, piece, chunk, sources, self._came, number))
        messages.over.append(tuple(sent))

    def _send(
        self,
        messages: _Stream,
        piece: Piece,
        chunk: Index,
        sources: tuple[Place, ...],
        needs: tuple[int, ...],
        number: int = 0,
    ) -> int:
        """Send a chunk from where it lies, or through a buffer where it is made up first."""
        source = sources[0]
        if len(sources) > 1 or source.member != self._me or not is_contiguous(source.cut):
            buffer = self._buffer(messages, piece, chunk, number)
            packed = Step(
                Do.REDUCE,
                (*needs, *messages.free),
                target=buffer,
                sources=sources,
                spans=tuple((term, term + 1) for term in range(len(sources))),
                reduction=self._party.reduction,
            )
            source, needs = buffer, (self._add(packed),)
            self._reads += needs
        elif source.store is Store.SENT:
            needs = messages.free
        else:
            needs = (*needs, *messages.free)
        step = Step(
            Do.SEND, needs, messages.last, (messages.peer,), messages.stream, sources=(source,)
        )
        messages.last = self._add(step)
        return messages.last

    def _listen(self, piece: Piece, chunk: Index) -> None:
        """Receive a chunk where it belongs, or through a buffer if its bytes lie apart there."""
        messages = self._stream(Do.RECEIVE, piece.owner, HAND_ON)
        target = _place(Store.RECEIVED, piece, self._me, chunk)
        if is_contiguous(target.cut):
            placed = self._receive(messages, target)
        else:
            buffer = self._buffer(messages, piece, chunk, 0)
            received = self._receive(messages, buffer)
            placed = self._add(Step(Do.REDUCE, (received,), target=target, sources=(buffer,)))
        messages.over.append((placed,))
        self._placed.append(placed)

    def _receive(self, messages: _Stream, target: Place) -> int:
        step = Step(
            Do.RECEIVE,
            messages.free,
            messages.last,
            (messages.peer,),
            messages.stream,
            target=target,
        )
        messages.last = self._add(step)
        return messages.last

    def _copy(self, piece: Piece, source: Place, needs: tuple[int, ...]) -> None:
        target = _place(Store.RECEIVED, piece, self._me)
        self._reads.append(self._add(Step(Do.REDUCE, needs, target=target, sources=(source,))))

    def _stream(self, do: Do, peer: int, stream: int) -> _Stream:
        key = do, peer, stream
        if key not in self._streams:
            self._streams[key] = _Stream(peer, stream)
        return self._streams[key]

    def _buffer(self, messages: _Stream, piece: Piece, chunk: Index, number: int) -> Place:
        """Buffer for a message of a stream's next chunk."""
        key = len(messages.over) % WINDOW, number
        if key not in messages.buffers:
            messages.buffers[key] = self._buffers
            self._buffers += 1
        shape = chunk_shape(piece, chunk)
        return Place(Store.STAGING, piece.part, messages.buffers[key], shape=shape)

    def _add(self, step: Step) -> int:
        self._steps.append(step)
        return len(self._steps) - 1
