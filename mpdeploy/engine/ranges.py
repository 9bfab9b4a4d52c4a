"""Shape ranges from data: the smallest, the usual and the largest of what was seen, and a batch of one."""

from collections import Counter
from collections.abc import Sequence

from mpdeploy.engine.network import Port
from mpdeploy.engine.options import Profile, Shape, ShapeRange
from mpdeploy.errors import UsageError
from mpdeploy.runtime.feeds import Feeds


def profile_from(feeds: Feeds, inputs: Sequence[Port], where: str) -> tuple[Profile, ...]:
    """Return one profile that covers every feed, and a first axis of 1; none if no input is dynamic.

    Data come in batches as large as was handy; an engine that takes no smaller one would be of little use.

    The shape to optimise for is, dimension by dimension, the most frequent one (of equally frequent ones the
    largest).  Raises ``UsageError`` if a feed lacks a dynamic input or changes its rank; ``where`` names the model.
    """
    dynamic = [port for port in inputs if port.is_dynamic]
    if not dynamic:
        return ()
    seen: dict[str, list[Shape]] = {port.name: [] for port in dynamic}
    for label, feed in feeds.labelled():
        for port in dynamic:
            if port.name not in feed:
                raise UsageError(
                    f"the data lacks input '{port.name}', whose shape range is wanted",
                    where=label,
                    remedy="name the arrays as the model's inputs, or give --shapes",
                )
            array = feed[port.name]
            seen[port.name].append(tuple(map(int, array.flatten())) if port.holds_shape else tuple(array.shape))
    for port in dynamic:
        if len({len(shape) for shape in seen[port.name]}) > 1:
            raise UsageError(f"input '{port.name}' has arrays of different rank in the data", where=feeds.name)
    return (Profile(tuple(_range_of(port, seen[port.name]) for port in dynamic)),)


def fixed_by_data(profiles: Sequence[Profile], inputs: Sequence[Port]) -> tuple[str, ...]:
    """Return a warning for each dynamic axis of which the data hold a single size: the engine takes no other."""
    ranges = {found.name: found for profile in profiles for found in profile.ranges}
    return tuple(
        f"axis {axis} of input '{port.name}' is {ranges[port.name].max[axis]} in all the data, and so in the engine: "
        "--shapes opens it"
        for port in inputs
        if port.name in ranges and not port.holds_shape
        for axis, size in enumerate(port.shape)
        if not isinstance(size, int) and ranges[port.name].min[axis] == ranges[port.name].max[axis] > 1
    )


def _range_of(port: Port, shapes: Sequence[Shape]) -> ShapeRange:
    columns = [Counter(column) for column in zip(*shapes, strict=True)]
    smallest = tuple(min(column) for column in columns)
    if not port.holds_shape and port.shape and not isinstance(port.shape[0], int):
        smallest = (min(1, smallest[0]), *smallest[1:])
    return ShapeRange(
        port.name,
        smallest,
        tuple(max(column, key=lambda size: (column[size], size)) for column in columns),
        tuple(max(column) for column in columns),
    )
