"""A large feed in slices of its first axis, so that a file with thousands of samples runs in bounded memory."""

from collections.abc import Iterator, Sequence

from mpdeploy.runtime.feeds import is_answer
from mpdeploy.runtime.lazy import headers_of, rows
from mpdeploy.runtime.runner import Feed, TensorSpec

ROWS, BYTES = 256, 8 << 20  # the most that a slice holds


def slices(feed: Feed, inputs: Sequence[TensorSpec]) -> Iterator[tuple[int, Feed]]:
    """Yield the feed in slices, each after the index of its first row; whole if it is small or cannot be cut.

    It can if every input's first axis is free, and all arrays, labels included, have the same length there.
    """
    headers = headers_of(feed)
    lengths = {header.length for header in headers.values()}
    free = all(spec.shape and not isinstance(spec.shape[0], int) for spec in inputs)
    count = lengths.pop() if len(lengths) == 1 and free else None
    if count is None or count <= 1:
        yield 0, feed
        return
    fed = {spec.name for spec in inputs}
    total = sum(header.nbytes for name, header in headers.items() if name in fed or is_answer(name))
    step = max(1, min(ROWS, BYTES // max(1, total // count)))
    if count <= step:
        yield 0, feed
        return
    for start in range(0, count, step):
        yield start, rows(feed, start, start + step)
