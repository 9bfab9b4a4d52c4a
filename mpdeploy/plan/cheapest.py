"""What the rules leave open: the formats that cast the fewest bytes, the more accurate ones where that is as cheap."""

from collections.abc import Iterator, Mapping, Set

from mpdeploy.graph.traits import Kind, kind_of
from mpdeploy.plan.assign import Border, assign
from mpdeploy.plan.groups import Group, Groups, is_constant
from mpdeploy.plan.reasons import Reason
from mpdeploy.plan.sizes import Sizes

_NEARLY = 0.9  # what a Cast into the tail counts: nearly as cheap is cheap enough
_SMALL = 0.25  # of all bytes: a tail that makes more than this is not small
_FP32_BYTES = 4


def cheapest(groups: Groups, pins: Mapping[int, Reason], sizes: Sizes, *, low_io: bool) -> list[bool]:
    """Return for each group whether it is low: not where it is pinned, always where it is a product and is not.

    What is left is the minimum cut (see ``assign``), with two exceptions.  Behind the last product, small tensors on
    their way to FP32 outputs stay FP32 if that casts hardly a byte more: more accurate for nothing.  And a piece in
    which no product is low and no stored bytes are saved stays FP32: nothing would be won for its Casts.
    """
    index = {id(g): i for i, g in enumerate(groups.all)}
    fixed = {index[i]: False for i in pins}
    for i, group in enumerate(groups.all):
        if i not in fixed and _is_product(group):
            fixed[i] = True
    outside = len(groups.all)  # the model's own inputs and outputs, as one more group
    fixed[outside] = low_io
    tail = set() if low_io else _small_tail(groups, index, fixed, sizes)
    borders = list(_borders(groups, index, outside, tail, sizes))
    chosen = assign(len(groups.all) + 1, fixed, borders, tail)[:outside]
    return chosen if low_io else _without_idle_pieces(groups, index, chosen, sizes)


def _is_product(group: Group) -> bool:
    return kind_of(group.node) is Kind.HEAVY and not group.operand_set


def _borders(groups: Groups, index: Mapping[int, int], outside: int, tail: Set[int], sizes: Sizes) -> Iterator[Border]:
    outputs = {operand.value for operand in groups.outputs}
    for value in groups.values:
        readers = [index[id(g)] for g in groups.consumers.get(value, ())]
        if value in outputs:
            readers.append(outside)
        producer = groups.producer.get(value)
        if producer is None and is_constant(value):
            # The bytes of a scalar decide nothing: of equally cheap assignments the lower one is faster, and some of
            # the others a builder cannot fuse (FP32 guards between softmax and the cast behind it).
            if sizes.elements(value) > 1:
                yield Border(None, tuple(readers), _FP32_BYTES * sizes.elements(value))
        else:
            at = outside if producer is None else index[id(producer)]
            into_tail = at not in tail and tail >= set(readers)
            cost = _FP32_BYTES * sizes.passing(value)
            yield Border(at, tuple(readers), int(_NEARLY * cost) if into_tail else cost)


def _small_tail(groups: Groups, index: Mapping[int, int], fixed: Mapping[int, bool], sizes: Sizes) -> set[int]:
    """The groups from which no product is reached any more, if what they make is small beside all else."""
    ahead = {i for i, low in fixed.items() if low and i < len(groups.all)}
    pending = list(ahead)
    while pending:
        for operand in groups.all[pending.pop()].consumes:
            producer = groups.producer.get(operand.value)
            if producer is not None and index[id(producer)] not in ahead:
                ahead.add(index[id(producer)])
                pending.append(index[id(producer)])
    tail = {i for i in range(len(groups.all)) if i not in ahead}
    made = [sum(sizes.passing(value) for value in group.produces) for group in groups.all]
    return tail if sum(made[i] for i in tail) <= _SMALL * sum(made) else set()


def _without_idle_pieces(groups: Groups, index: Mapping[int, int], chosen: list[bool], sizes: Sizes) -> list[bool]:
    result = list(chosen)
    seen: set[int] = set()
    for start, low in enumerate(chosen):
        if low and start not in seen:
            piece = _piece(groups, index, chosen, start)
            seen |= piece
            if not any(_is_product(groups.all[i]) for i in piece) and not _saves(groups, index, piece, sizes):
                for i in piece:
                    result[i] = False
    return result


def _piece(groups: Groups, index: Mapping[int, int], chosen: list[bool], start: int) -> set[int]:
    """The low groups that hang together with one of them."""
    piece, pending = {start}, [start]
    while pending:
        group = groups.all[pending.pop()]
        around = [groups.producer.get(operand.value) for operand in group.consumes]
        around += [reader for value in group.produces for reader in groups.consumers.get(value, ())]
        for other in around:
            if other is not None and chosen[index[id(other)]] and index[id(other)] not in piece:
                piece.add(index[id(other)])
                pending.append(index[id(other)])
    return piece


def _saves(groups: Groups, index: Mapping[int, int], piece: set[int], sizes: Sizes) -> bool:
    """Whether a piece saves more stored bytes than its Casts read, as far as the sizes are really known."""
    saved = cast = 0
    for i in piece:
        group = groups.all[i]
        for value in {operand.value for operand in group.consumes}:
            if is_constant(value):
                saved += _FP32_BYTES * sizes.elements(value) // 2
            elif (producer := groups.producer.get(value)) is None or index[id(producer)] not in piece:
                cast += _FP32_BYTES * sizes.passing(value)
        for value in group.produces:
            if not sizes.is_known(value):
                return False
            if not piece.issuperset(index[id(g)] for g in groups.consumers.get(value, ())) or value.is_graph_output():
                cast += _FP32_BYTES * sizes.passing(value)
    return saved > cast
