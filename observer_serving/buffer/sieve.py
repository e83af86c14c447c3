"""Which chunks of the record may hold a trace id: told in memory, at a cost that does not grow with the record.

A Bloom filter per chunk, all of one size and kept bit-sliced: bit `c` of the word at a position says whether the filter
of column `c` has that position set, so that one gather and one `and` ask all chunks at once (Goodwin et al., BitFunnel,
SIGIR 2017). Positions by double hashing (Kirsch & Mitzenmacher, 2006).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

POSITIONS = 1 << 17
"""Bits of a filter. With `HASHES` of them for each of 4,096 ids, 2.5e-5 of the ids it does not hold pass."""
HASHES = 6
_WORD, _WORD_BITS = np.dtype("<u8"), 64
_MORE_WORDS = 4
_ID_BYTES = 16
_STEPS = np.arange(HASHES, dtype=np.uint64)
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
"""The odd constants of SplitMix64 (Steele et al., 2014): ids whose bits are not random are spread too."""


def filter_of(ids: Sequence[bytes]) -> bytes:
    """The filter of these trace ids, as it is kept on disk."""
    bits = np.zeros(POSITIONS, dtype=bool)
    bits[_positions(ids)] = True
    return np.packbits(bits).tobytes()


class Sieve:
    """The filters of all chunks, which are told apart by a number. One thread changes it; any may ask."""

    def __init__(self, filters: Mapping[int, bytes]) -> None:
        self._columns: list[int] = []  # column → chunk; 0 where the column is free
        self._words = np.zeros((POSITIONS, -(-len(filters) // _WORD_BITS)), dtype=_WORD)
        for chunk, filter_ in filters.items():
            self.put(chunk, filter_)

    def put(self, chunk: int, filter_: bytes) -> None:
        """Ask about a chunk from now on, or about more of its ids."""
        column = self._columns.index(chunk) if chunk in self._columns else self._free()
        bits = np.unpackbits(np.frombuffer(filter_, np.uint8))
        byte, bit = divmod(column, 8)
        self._words.view(np.uint8)[:, byte] |= bits << np.uint8(bit)
        self._columns[column] = chunk

    def drop(self, chunk: int) -> None:
        """Ask about a chunk no more."""
        column = self._columns.index(chunk)
        self._columns[column] = 0
        byte, bit = divmod(column, 8)
        self._words.view(np.uint8)[:, byte] &= ~np.uint8(1 << bit)

    def candidates(self, ids: Sequence[bytes]) -> Iterator[tuple[bytes, int]]:
        """The ids that may be in a chunk, each with every such chunk. No id of a chunk is missing."""
        hits = np.bitwise_and.reduce(self._words[_positions(ids)], axis=1)
        for place, word in zip(*(axis.tolist() for axis in hits.nonzero()), strict=True):
            mask = int(hits[place, word])
            while mask:
                column = word * _WORD_BITS + (mask & -mask).bit_length() - 1
                mask &= mask - 1
                if chunk := self._columns[column]:
                    yield ids[place], chunk

    def _free(self) -> int:
        """A column that is free, made if need be."""
        if 0 not in self._columns:
            self._columns.append(0)
            if len(self._columns) > self._words.shape[1] * _WORD_BITS:
                more = np.zeros((POSITIONS, _MORE_WORDS), dtype=_WORD)
                self._words = np.concatenate([self._words, more], axis=1)
        return self._columns.index(0)


def _positions(ids: Iterable[bytes]) -> NDArray[np.intp]:
    """The filter's positions of each id: `[ids, HASHES]`."""
    halves = np.frombuffer(b"".join(ids), dtype="<u8").reshape(-1, _ID_BYTES // 8)
    mixed = (halves[:, 0] * _MIX[0]) ^ halves[:, 1]
    for shift, factor in ((30, _MIX[1]), (27, _MIX[2])):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * factor
    first, step = mixed >> np.uint64(40), (mixed >> np.uint64(8)) | np.uint64(1)
    spread = first[:, None] + _STEPS * step[:, None]
    return (spread & np.uint64(POSITIONS - 1)).astype(np.intp)
