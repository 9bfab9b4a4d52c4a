"""The cheapest assignment of formats: a minimum cut.

Each group is labelled FP32 or low.  Some labels are given; the rest are chosen so that the fewest bytes are cast.
A value that its producer makes in one format and some reader wants in the other is cast once, whatever the number
of readers; a constant costs what it adds to the file: half its size if somebody reads it in FP32, as much again if
others read it low.  Two labels and a cost for each border make this a
minimum s-t cut: Boykov, Veksler, Zabih, "Fast approximate energy minimization via graph cuts" (PAMI 2001); one
auxiliary vertex says "some reader differs": Kohli, Ladicky, Torr, "Robust higher order potentials" (CVPR 2008).
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

import numpy as np

_CAPACITY_SUM = 2**29  # scipy's max-flow counts in 32 bits; forbidden edges cost more than all others together
_FORBIDDEN = 2**30


@dataclass(frozen=True)
class Border:
    """A value between groups: ``producer`` (None: a constant) and ``readers`` by index.

    ``cost`` is the value's size in FP32, in bytes.
    """

    producer: int | None
    readers: tuple[int, ...]
    cost: int


def assign(
    count: int, fixed: Mapping[int, bool], borders: Iterable[Border], careful: Set[int] = frozenset()
) -> list[bool]:
    """Return for each of ``count`` groups whether it is low: as ``fixed`` says where it does, else the cheapest.

    Among equally cheap assignments, the one with the fewest FP32 groups; of those in ``careful``, with the most.
    """
    if len(fixed) == count:
        return [fixed[i] for i in range(count)]
    network = _Network(count, fixed, careful)
    for border in borders:
        network.add(border)
    fp32 = network.fp32_side()
    return [fixed[i] if i in fixed else not fp32[i] for i in range(count)]


class _Network:
    """Vertices on the source's side of the cut are FP32, those on the sink's side low."""

    _SOURCE, _SINK = 0, 1

    def __init__(self, count: int, fixed: Mapping[int, bool], careful: Set[int]) -> None:
        self._vertex: list[int] = []
        self._size = 2
        for index in range(count):
            if index in fixed:
                self._vertex.append(self._SINK if fixed[index] else self._SOURCE)
            else:
                self._vertex.append(self._new())
        self._careful = {self._vertex[index] for index in careful}
        self._edges: list[tuple[int, int]] = []
        self._costs: list[int] = []
        self._forbidden: list[tuple[int, int]] = []

    def add(self, border: Border) -> None:
        readers = sorted({self._vertex[r] for r in border.readers})
        if border.producer is None:
            self._add_constant(readers, border.cost)
            return
        producer = self._vertex[border.producer]
        others = [r for r in readers if r != producer]
        if len(others) == 1:
            self._edge(producer, others[0], border.cost)
            self._edge(others[0], producer, border.cost)
        elif others:
            some_low, some_fp32 = self._new(), self._new()
            self._edge(producer, some_low, border.cost)
            self._edge(some_fp32, producer, border.cost)
            for reader in others:
                self._forbidden += [(some_low, reader), (reader, some_fp32)]

    def _add_constant(self, readers: list[int], cost: int) -> None:
        if len(readers) == 1:
            self._edge(readers[0], self._SINK, cost // 2)
        elif readers:
            some_fp32, some_low = self._new(), self._new()
            self._edge(some_fp32, self._SINK, cost // 2)
            self._edge(some_fp32, some_low, cost // 2)
            for reader in readers:
                self._forbidden += [(reader, some_fp32), (some_low, reader)]

    def fp32_side(self) -> list[bool]:
        """Return for each group whether the minimum cut leaves it on the source's side."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

        free = sorted({v for v in self._vertex if v > self._SINK})
        # One unit for each free operator on its less wanted side: it decides only between cuts of equal bytes.
        units = [(self._SOURCE, v) if v in self._careful else (v, self._SINK) for v in free]
        edges = [*self._edges, *units, *self._forbidden]
        total = sum(self._costs) or 1
        room = (_CAPACITY_SUM - len(free)) // 2
        unit = len(free) + 1  # at least one byte outweighs all preferences, while the scale allows
        scale = min(unit, room / total)
        costs = [max(1, round(c * scale)) if c else 0 for c in self._costs]
        capacity = np.array([*costs, *[1] * len(free), *[_FORBIDDEN] * len(self._forbidden)], np.int64)
        tails, heads = np.array(edges, np.int32).reshape(-1, 2).T
        graph = csr_array((capacity, (tails, heads)), shape=(self._size, self._size))
        graph.sum_duplicates()
        graph.data = np.minimum(graph.data, _FORBIDDEN).astype(np.int32)
        flow = maximum_flow(graph, self._SOURCE, self._SINK).flow
        residual = graph - flow
        residual.data = np.where(residual.data > 0, 1, 0)
        residual.eliminate_zeros()
        reached = np.zeros(self._size, bool)
        reached[breadth_first_order(residual, self._SOURCE, return_predecessors=False)] = True
        return [bool(reached[v]) for v in self._vertex]

    def _new(self) -> int:
        self._size += 1
        return self._size - 1

    def _edge(self, tail: int, head: int, cost: int) -> None:
        # What flows out of the sink or into the source cuts nothing.
        if tail != self._SINK and head != self._SOURCE and tail != head:
            self._edges.append((tail, head))
            self._costs.append(cost)
