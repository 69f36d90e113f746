"""Exact, keyed, replay-safe noise.

A :class:`NoiseSource` turns (secret key, stream, slot, purpose, digest of everything that shapes
the slot) into an AES-256-CTR stream of random words. The same input gives the same noise, so that
a runner may run a bundle twice; any other input gives independent noise, so that two runs on
different data never reveal their difference.

The samplers are exact: they use integers only, and a tie that 64 bits cannot decide is decided
with more bits.

Source: Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy" (2020),
Algorithms 1 and 2, here on vectors.
"""

from __future__ import annotations

import decimal
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Flags, Integers
from streamveil.mechanisms.core.budgets import UNIT_BITS, to_epsilon
from streamveil.mechanisms.core.records import ConfigurationError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

Words = npt.NDArray[np.uint64]

KEY_BYTES = 32

# The geometric part of the sampler counts successes of probability exp(-1). floor(exp(-45) *
# 2**64) is 0: a word of 0 ties with it, and more bits tell how many more successes there are.
_MAX_SUCCESSES = 45

# `fine_laplace` has budgets in units of 2**-FINE_BITS epsilon, within these.
FINE_BITS = 56
FINE_RATES = (8, 1 << 52)

# Words drawn at once: 32 MB.
_MAX_WORDS = 1 << 22

# Words made at once, at least: a sampler asks for a few at a time, and to ask the cipher takes
# longer than to make these.
_WORDS_AHEAD = 128
_NO_WORDS: Words = np.empty(0, dtype="<u8")


def _encryptor(key: bytes, counting: bool = False) -> CipherContext:
    """AES under the key, block by block or as a counter.

    It is imported when noise is drawn: whoever reads options or starts a device draws none yet.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    mode = modes.CTR(bytes(16)) if counting else modes.ECB()
    return Cipher(algorithms.AES(key), mode).encryptor()


class RandomWords:
    """A stream of uniform 64-bit words that is a function of its 32-byte key alone."""

    def __init__(self, key: bytes) -> None:
        self._encryptor = _encryptor(key, counting=True)
        self._ready: Words = _NO_WORDS

    def draw(self, size: int) -> Words:
        """Return the next `size` words, uint64, shape (size,)."""
        missing = size - self._ready.size
        if missing > 0:
            some = self._encryptor.update(bytes(8 * max(missing, _WORDS_AHEAD)))
            fresh = np.frombuffer(some, dtype="<u8")
            self._ready = np.concatenate((self._ready, fresh)) if self._ready.size else fresh
        drawn, self._ready = self._ready[:size], self._ready[size:]
        return drawn


def keyed_words(key: bytes, *numbers: Words) -> Words:
    """A uniform word for each pair of 64-bit numbers: a function of key and pair.

    Not for noise, which is bound to what it hides: for draws that must come out alike wherever they
    are made.

    Args:
        key: 32 bytes.
        numbers: two arrays, uint64, shape (n,).
    """
    blocks = np.column_stack(numbers).astype("<u8")
    encryptor = _encryptor(key)  # no two pairs are alike
    return np.frombuffer(encryptor.update(blocks.tobytes()), dtype="<u8")[::2]


class WatchedWords(RandomWords):
    """Words of an audit: samplers tell them what was drawn, for what, and take what they give back.

    See :func:`looking_on`.
    """

    def laplace(self, noise: Integers, units: int) -> Integers:
        """Discrete Laplace noise at a rate in units, to be added once to what it hides."""
        raise NotImplementedError

    def thinned(self, counts: Integers, thresholds: Sequence[int], kept: Integers) -> Integers:
        """What is kept of counts, each of class k with probability thresholds[k] / 2**64."""
        raise NotImplementedError

    def reported(self, symbols: Integers, thresholds: Sequence[int], reports: Integers) -> Integers:
        """Reports of symbols: the truth with probability thresholds[k] / 2**64, else any symbol."""
        raise NotImplementedError

    def chosen(self, losses: Integers, rate: int, found: Integers) -> Integers:
        """What the exponential mechanism drew of candidates with these losses."""
        raise NotImplementedError

    def armed(self, rate: int) -> None:
        """A threshold got noise at a rate in units; comparisons with it follow."""

    def passed(self, value: int, rate: int, above: bool) -> bool:
        """Whether a value with noise at a rate in units is above the threshold that was armed."""
        raise NotImplementedError


@dataclass(frozen=True)
class SlotNoise:
    """The randomness of one slot: one independent stream of words for each purpose."""

    key: bytes = field(repr=False)

    def words(self, purpose: str) -> RandomWords:
        """Start the stream of words for a purpose; asking again starts the same stream again."""
        words, look = RandomWords(_prf(self.key, b"purpose", purpose.encode())), _LOOK.get()
        return words if look is None else look(self.key, purpose, words)


Look = Callable[[bytes, str, RandomWords], RandomWords]
"""Takes the key of a slot, a purpose and its words, and gives the words that are drawn from."""
_LOOK: ContextVar[Look | None] = ContextVar("look", default=None)


@contextmanager
def looking_on(look: Look) -> Iterator[None]:
    """Let an audit see what randomness is used for, and take the place of what it would give.

    For runs in memory whose keys are known, never for releases.
    """
    before = _LOOK.set(look)
    try:
        yield
    finally:
        _LOOK.reset(before)


@dataclass(frozen=True)
class NoiseKeys:
    """The secret key of every slot: the first one, until a later one takes its place.

    Raises ConfigurationError for a key that is not 32 bytes, or slots that do not ascend. The keys
    are never shown.
    """

    first: bytes
    later: tuple[tuple[int, bytes], ...] = ()
    """First slot of each later key, and the key."""

    def __post_init__(self) -> None:
        """Check keys and slots."""
        for key in (self.first, *(key for _, key in self.later)):
            if len(key) != KEY_BYTES:
                raise ConfigurationError(
                    f"a noise key has {len(key)} bytes: give {KEY_BYTES} random ones"
                )
        starts = [start for start, _ in self.later]
        if starts != sorted(set(starts)):
            raise ConfigurationError(
                f"noise keys take each other's place at slots {starts}: give them by slot, no two "
                "at the same"
            )

    def __repr__(self) -> str:
        return "NoiseKeys(<secret>)"

    @classmethod
    def of(cls, key: bytes | NoiseKeys) -> NoiseKeys:
        """One key for all slots, or what there is of each already."""
        return key if isinstance(key, NoiseKeys) else cls(bytes(key))

    def at(self, slot: int) -> bytes:
        """The key of a slot."""
        return next((key for start, key in reversed(self.later) if start <= slot), self.first)

    def derived(self, purpose: str) -> NoiseKeys:
        """The keys for another purpose: see :func:`derived_key`."""
        return self.each(lambda key: derived_key(key, purpose))

    def counted_from(self, slot: int) -> NoiseKeys:
        """The same keys, where that slot has number 0."""
        return NoiseKeys(self.first, tuple((start - slot, key) for start, key in self.later))

    def of_slots(self, of: Callable[[int], int]) -> NoiseKeys:
        """The same for longer slots, which have the key of their last slot.

        `of` gives the longer slot of a slot.
        """
        later = {of(start): key for start, key in self.later}
        return NoiseKeys(self.first, tuple(later.items()))

    def each(self, change: Callable[[bytes], bytes]) -> NoiseKeys:
        """What is made of each key, from the same slots on."""
        later = tuple((start, change(key)) for start, key in self.later)
        return NoiseKeys(change(self.first), later)


class NoiseSource:
    """The secret key from which all noise of a stream is derived. The key is never displayed.

    Raises:
        ConfigurationError: if the key is not 32 bytes.
    """

    def __init__(self, key: bytes | NoiseKeys, stream: str = "") -> None:
        self._keys = NoiseKeys.of(key).each(lambda one: _prf(one, b"stream", stream.encode()))

    def __repr__(self) -> str:
        return "NoiseSource(<secret>)"

    @property
    def sealing_key(self) -> bytes:
        """The key for checksums of saved states, derived from the stream's first noise key."""
        return _prf(self._keys.first, b"seal")

    def of_slots(self, of: Callable[[int], int]) -> NoiseSource:
        """Return the noise source of a query whose slots consist of several base slots each.

        The noise key may change at a base slot. If it changes within one slot of the query, the
        noise of this slot is derived from the later key. The function `of` takes a base slot, and
        returns the slot of the query that contains this base slot.
        """
        made = copy(self)
        made._keys = self._keys.of_slots(of)
        return made

    def slot(self, slot: int, digest: bytes) -> SlotNoise:
        """Return the random source for a slot.

        `digest` is a hash of the slot's input and of all earlier slots. A different digest gives
        independent noise.
        """
        return SlotNoise(_prf(self._keys.at(slot), b"slot", b"%d" % slot, digest))


def derived_key(key: bytes, purpose: str) -> bytes:
    """A key for another secret purpose than noise: 32 bytes that say nothing about `key`."""
    return _prf(key, b"derived", purpose.encode())


def _prf(key: bytes, *parts: bytes) -> bytes:
    """Keyed BLAKE2b of length-prefixed parts: 32 bytes."""
    return digest(*parts, key=key, person=b"streamveil noise")


def digest(*parts: bytes, size: int = 32, key: bytes = b"", person: bytes = b"") -> bytes:
    """BLAKE2b of length-prefixed parts: `size` bytes."""
    framed = b"".join([len(part).to_bytes(8, "little") + part for part in parts])
    return hashlib.blake2b(framed, key=key, digest_size=size, person=person).digest()


def thin(
    counts: npt.NDArray[np.int64], thresholds: Sequence[int], words: RandomWords
) -> npt.NDArray[np.int64]:
    """Keep each counted event of class k with probability thresholds[k] / 2**64, exactly.

    This is a sample of every event by itself: the result has the distribution of drawing for each
    event and counting afterwards. One word is drawn for each event of a class that is neither
    kept whole (2**64) nor dropped whole (0).

    Args:
        counts: events of each class and bin, shape (K, d), not negative.
        thresholds: K integers from 0 to 2**64.
        words: where randomness comes from.

    Returns:
        Kept events, int64, shape (K, d).
    """
    kept = counts.copy()
    kept[[k for k, threshold in enumerate(thresholds) if threshold == 0]] = 0
    drawn = [k for k, threshold in enumerate(thresholds) if 0 < threshold < 1 << 64]
    if not drawn:
        return _thinned(counts, thresholds, kept, words)
    cells = counts[drawn]
    limits = np.array([thresholds[k] for k in drawn], dtype=np.uint64)
    class_ends = np.cumsum(cells.sum(axis=1))
    happy = np.empty(int(class_ends[-1]), dtype=bool)
    for start in range(0, happy.size, _MAX_WORDS):
        stop = min(start + _MAX_WORDS, happy.size)
        here = _steps(np.minimum(np.maximum(class_ends, start), stop), start)
        np.less(words.draw(stop - start), np.repeat(limits, here), out=happy[start:stop])
    below = np.zeros(happy.size + 1, dtype=np.int64)
    np.cumsum(happy, out=below[1:])
    kept[drawn] = _steps(below[np.cumsum(cells)], 0).reshape(cells.shape)
    return _thinned(counts, thresholds, kept, words)


def _thinned(
    counts: Integers, thresholds: Sequence[int], kept: Integers, words: RandomWords
) -> Integers:
    return words.thinned(counts, thresholds, kept) if isinstance(words, WatchedWords) else kept


def _steps(ends: npt.NDArray[np.int64], start: int) -> npt.NDArray[np.int64]:
    """What `np.diff(ends, prepend=start)` gives, in a third of the time where there is little."""
    steps = ends.copy()
    steps[1:] -= ends[:-1]
    steps[:1] -= start
    return steps


def uniform(size: int, symbols: int, words: RandomWords) -> npt.NDArray[np.int64]:
    """Draw integers from 0 to symbols - 1, all exactly as likely: shape (size,)."""
    last = np.uint64((1 << 64) - (1 << 64) % symbols - 1)
    drawn = words.draw(size).copy()
    while (over := np.flatnonzero(drawn > last)).size:
        drawn[over] = words.draw(over.size)
    return (drawn % np.uint64(symbols)).astype(np.int64)


def probability_threshold(probability: float) -> int:
    """Largest safe integer t with t / 2**64 <= the real number that `probability` rounds.

    `probability` is a float computed with a relative error below 2**-48; it is lowered by that
    much before it is rounded down, so sampling never keeps more than was accounted for. Exactly
    1.0 stays certain: callers pass it only where sampling is not needed.
    """
    if probability >= 1.0:
        return 1 << 64
    return int(probability * (1.0 - 2.0**-48) * 2.0**64)


def raised_threshold(probability: float) -> int:
    """Small integer t with t / 2**64 > the real number, below 1/2, that `probability` rounds.

    The counterpart of :func:`probability_threshold` where privacy takes too much, not too little.
    """
    return int(probability * (1.0 + 2.0**-48) * 2.0**64) + 1


def discrete_laplace(units: int, size: int, words: RandomWords) -> npt.NDArray[np.int64]:
    """Sample integers y with probability proportional to exp(-|y| * units / 2**40).

    Added to a count that one contribution changes by at most 1, it costs `units` of budget.

    Args:
        units: budget in units of 2**-40 epsilon, from 1 to 2**52.
        size: how many samples.
        words: where randomness comes from.

    Returns:
        int64, shape (size,).

    Raises:
        ValueError: for units out of range.
    """
    if not 1 <= units <= 1 << 52:
        raise ValueError(f"a budget of {units} units is not from 1 to 2**52: no noise fits it")
    samples = np.empty(size, dtype=np.int64)
    filled = 0
    while filled < size:
        # Acceptance is at least 0.3, typically above 0.6: a second round is rare.
        tries = (size - filled) * 7 // 4 + 16
        _, fraction, whole, negative = _exponentials(UNIT_BITS, tries, words)
        magnitude = (fraction + (whole << UNIT_BITS)) // units
        accepted = (magnitude > 0) | ~negative  # zero has one sign only
        fresh = np.where(negative, -magnitude, magnitude)[accepted]
        taken = min(fresh.size, size - filled)
        samples[filled : filled + taken] = fresh[:taken]
        filled += taken
    return words.laplace(samples, units) if isinstance(words, WatchedWords) else samples


def armed(rate: int, words: RandomWords) -> None:
    """Say that a threshold got noise at a rate in units: comparisons follow, of a sparse vector."""
    if isinstance(words, WatchedWords):
        words.armed(rate)


def passed(value: int, rate: int, above: bool, words: RandomWords) -> bool:
    """Say whether a value with noise at a rate in units is above the threshold that was armed.

    No more is revealed about the value, and below the threshold it costs nothing.
    """
    return words.passed(value, rate, above) if isinstance(words, WatchedWords) else above


def laplace_variance(units: int) -> float:
    """Variance of :func:`discrete_laplace`; infinite without any budget."""
    if units == 0:
        return float("inf")
    missing = float(-np.expm1(-to_epsilon(units)))
    return 2 * (1 - missing) / missing**2


def fine_laplace(
    rates: npt.NDArray[np.int64], words: RandomWords, size: int = 1
) -> npt.NDArray[np.int64]:
    """Sample integers y with probability proportional to exp(-|y| * rate / 2**56).

    As :func:`discrete_laplace`, on a finer scale and of a budget each. Products of more than 63
    bits, which would spoil a sample, have a probability below exp(-1000).

    Args:
        rates: int64, shape (n,), from `FINE_RATES[0]` to `FINE_RATES[1]`.
        words: where randomness comes from.
        size: how many samples of each.

    Returns:
        int64, shape (size, n).

    Raises:
        ValueError: for rates out of range.
    """
    if rates.size and not FINE_RATES[0] <= rates.min() <= rates.max() <= FINE_RATES[1]:
        raise ValueError(
            f"rates from {rates.min()} to {rates.max()} are not from {FINE_RATES[0]} to "
            f"{FINE_RATES[1]}: no noise fits them"
        )
    each = np.tile(rates, size)
    samples = np.empty_like(each)
    missing = np.arange(each.size)
    while missing.size:
        alive, fraction, whole, negative = _exponentials(FINE_BITS, missing.size, words)
        rate = each[missing[alive]]
        # (fraction + whole * 2**56) // rate, without the product.
        quotient, rest = np.divmod(1 << FINE_BITS, rate)
        magnitude = whole * quotient + (fraction + whole * rest) // rate
        accepted = (magnitude > 0) | ~negative
        filled = np.flatnonzero(alive)[accepted]
        samples[missing[filled]] = np.where(negative, -magnitude, magnitude)[accepted]
        missing = np.delete(missing, filled)
    return samples.reshape(size, rates.size)


def _exponentials(
    bits: int, size: int, words: RandomWords
) -> tuple[Flags, npt.NDArray[np.int64], npt.NDArray[np.int64], Flags]:
    """Try `size` times for integers u with probability proportional to exp(-u / 2**bits).

    Returns which tries went well; and of those u mod 2**bits, u >> bits, and a fair sign.
    """
    first, rest = words.draw(size), np.uint64(64 - bits)
    alive = _bernoulli_exp(first >> rest, words, bits)  # of what is uniform in 0 .. 2**bits - 1
    first = first[alive]
    negative = (first & np.uint64(1)).astype(bool)
    return alive, (first >> rest).astype(np.int64), _geometric(first.size, words), negative


def bernoulli_exp(losses: npt.NDArray[np.int64], words: RandomWords) -> Flags:
    """Bernoulli(exp(-loss / 2**56)) for each of some integers from 0 on, exactly: shape (n,)."""
    happy = _bernoulli_exp((losses & ((1 << FINE_BITS) - 1)).astype(np.uint64), words, FINE_BITS)
    alive = np.flatnonzero(happy)
    happy[alive] = _geometric(alive.size, words) >= losses[alive] >> FINE_BITS
    return happy


def _bernoulli_exp(fraction: Words, words: RandomWords, bits: int = UNIT_BITS) -> Flags:
    """Bernoulli(exp(-fraction / 2**bits)), by the alternating series: the first failure decides."""
    odd = np.zeros(fraction.size, dtype=bool)
    index = np.arange(fraction.size)
    scaled = fraction << np.uint64(64 - bits)
    k = 1
    while index.size:
        # Success with probability (fraction / 2**bits) / k, decided by one word and its tie-break.
        limit = scaled // np.uint64(k)
        drawn = words.draw(index.size)
        success, tied = drawn < limit, drawn == limit
        if np.count_nonzero(tied):
            for tie in np.flatnonzero(tied):
                success[tie] = _bernoulli_rational(int(scaled[tie]) % k, k, words)
        if k % 2:
            odd[index[~success]] = True
        index, scaled = index[success], scaled[success]
        k += 1
    return odd


def _bernoulli_rational(numerator: int, denominator: int, words: RandomWords) -> bool:
    """Bernoulli(numerator / denominator) for numerator <= denominator, exactly."""
    while True:
        limit, numerator = divmod(numerator << 64, denominator)
        word = int(words.draw(1)[0])
        if word != limit:
            return word < limit


def _geometric(size: int, words: RandomWords) -> npt.NDArray[np.int64]:
    """Number v of successes of probability exp(-1) before a failure: P(at least v) = exp(-v)."""
    rising = _exp_table()
    drawn = words.draw(size)
    # v is the number of entries above the word; the first one is 0, which is above none.
    after = np.searchsorted(rising, drawn, side="right")
    value = _MAX_SUCCESSES - after.astype(np.int64)
    tied = rising[after - 1] == drawn
    if np.count_nonzero(tied):
        for tie in np.flatnonzero(tied):
            value[tie] = _geometric_tail(int(drawn[tie]), words)
    return value


@lru_cache(maxsize=1)
def _exp_table() -> Words:
    """floor(exp(-v) * 2**64) for v = 45 down to 1, ascending."""
    return np.array([_exp_bits(v, 64) for v in range(_MAX_SUCCESSES, 0, -1)], dtype=np.uint64)


def _exp_bits(v: int, bits: int) -> int:
    """floor(exp(-v) * 2**bits)."""
    with decimal.localcontext() as context:
        context.prec = bits  # more than three times the digits needed
        return int((decimal.Decimal(-v).exp() * (1 << bits)).to_integral_value(decimal.ROUND_FLOOR))


def _geometric_tail(prefix: int, words: RandomWords) -> int:
    """Finish a draw whose first 64 bits equal those of some exp(-v): take 64 more at a time."""
    bits = 64
    while True:
        prefix = (prefix << 64) | int(words.draw(1)[0])
        bits += 64
        v = 0
        while prefix < _exp_bits(v + 1, bits):
            v += 1
        if prefix != _exp_bits(v + 1, bits):
            return v
