"""The page lists of many records at once, as flat arrays.

`format.unpack_lists` reads one payload; here the lists of thousands of records are read in a dozen
array operations. A payload begins at a multiple of 8 bytes, so that the pages file is read as words
of 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_RAW, _RUNS, _WIDE, _INLINE = 0, 1, 2, 3
_COUNT_MAX = (1 << 30) - 1


@dataclass(frozen=True)
class PageLists:
    """Lists, one per record, shape (lists,): the word where each one's numbers or runs begin
    (`body`), its `form`, how many numbers it holds (`count`), how many words they take (`size`), and
    the number itself where a record has just one (`value`)."""

    body: np.ndarray
    form: np.ndarray
    count: np.ndarray
    size: np.ndarray
    value: np.ndarray

    @property
    def after(self) -> np.ndarray:
        """The word where the next list of the same record would begin."""
        after: np.ndarray = self.body + self.size
        return after

    def chosen(self, which: np.ndarray) -> PageLists:
        """Some of the lists, by a mask or by index."""
        return PageLists(*(part[which] for part in self._parts))

    def replaced(self, which: np.ndarray, other: PageLists) -> PageLists:
        """The lists with those under the mask `which` replaced, in order."""
        parts = [part.copy() for part in self._parts]
        for part, new in zip(parts, other._parts, strict=True):
            part[which] = new
        return PageLists(*parts)

    def joined(self, other: PageLists) -> PageLists:
        """These lists, and then the others."""
        pairs = zip(self._parts, other._parts, strict=True)
        return PageLists(*(np.concatenate(pair) for pair in pairs))

    @property
    def _parts(self) -> tuple[np.ndarray, ...]:
        return self.body, self.form, self.count, self.size, self.value


def find_lists(
    words: np.ndarray, at: np.ndarray, inline: np.ndarray, value: np.ndarray
) -> PageLists:
    """The lists that begin at the words `at`; where `inline`, the number is `value` and nothing is
    read. `IndexError` or `ValueError` when a list does not lie within `words`."""
    heads = words[np.where(inline, 0, at)].astype(np.int64) & 0xFFFFFFFF
    form, count = heads >> 30, heads & _COUNT_MAX
    size, body = count.copy(), at + 1
    if inline.any():
        form[inline], count[inline], size[inline] = _INLINE, 1, 0
    runs = np.flatnonzero(form == _RUNS)
    if runs.size:
        pairs = words[at[runs] + 1].astype(np.int64)
        if int(pairs.min()) < 0:
            raise ValueError("a page list holds a negative number of runs")
        size[runs] = 2 * pairs
        body[runs] += 1
    size[form == _WIDE] *= 2
    if int((body + size)[~inline].max(initial=0)) > words.size:
        raise ValueError("a page list is cut off")
    return PageLists(body, form, count, size, value)


def flatten(words: np.ndarray, lists: PageLists) -> np.ndarray:
    """The numbers of all lists, one list after the other, int64, shape (sum of counts,)."""
    form = lists.form
    raw = form == _RAW
    if raw.all():
        return _numbers(words, lists)
    runs = form == _RUNS
    if (raw | runs).all():
        return _numbers_and_runs(words, lists, raw)
    result = np.empty(int(lists.count.sum()), np.int64)
    begin = np.cumsum(lists.count) - lists.count
    inline, wide = form == _INLINE, form == _WIDE
    result[begin[inline]] = lists.value[inline]
    for chosen, read in ((raw | runs, _plain), (wide, _wide)):
        part = lists.chosen(chosen)
        if part.count.size:
            own = np.cumsum(part.count) - part.count
            result[spread(begin[chosen] - own, part.count)] = read(words, part)
    return result


def spread(start: np.ndarray, count: np.ndarray) -> np.ndarray:
    """`start[i] + k` for the k-th number of all lists, i being its list."""
    result = np.repeat(start, count)
    result += np.arange(result.size)
    return result


def _plain(words: np.ndarray, lists: PageLists) -> np.ndarray:
    return _numbers_and_runs(words, lists, lists.form == _RAW)


def _numbers(words: np.ndarray, lists: PageLists) -> np.ndarray:
    own = np.cumsum(lists.count) - lists.count
    numbers: np.ndarray = words[spread(lists.body - own, lists.count)].astype(np.int64)
    return numbers


def _wide(words: np.ndarray, lists: PageLists) -> np.ndarray:
    own = np.cumsum(lists.count) - lists.count
    low = spread(lists.body - own, lists.count)
    low += low - np.repeat(lists.body, lists.count)  # every number takes two words
    below = words[low].astype(np.int64) & 0xFFFFFFFF
    numbers: np.ndarray = below | words[low + 1].astype(np.int64) << 32
    return numbers


def _numbers_and_runs(words: np.ndarray, lists: PageLists, raw: np.ndarray) -> np.ndarray:
    """A number is a run of one."""
    parts = np.where(raw, lists.count, lists.size >> 1)
    own = np.cumsum(parts) - parts
    of_raw = np.repeat(raw, parts)
    step = np.where(raw, 1, 2)
    at = np.repeat(lists.body, parts) + (
        np.arange(of_raw.size) - np.repeat(own, parts)
    ) * np.repeat(step, parts)
    starts = words[at].astype(np.int64)
    lengths = np.ones(at.size, np.int64)
    in_run = np.flatnonzero(~of_raw)
    lengths[in_run] = words[at[in_run] + 1]
    edges = np.cumsum(lengths)
    reached = np.concatenate(([0], edges))[own + parts]
    if int(lengths.min(initial=1)) < 1 or not np.array_equal(reached, np.cumsum(lists.count)):
        raise ValueError("a page list holds other runs than it says")
    return spread(starts - (edges - lengths), lengths)
