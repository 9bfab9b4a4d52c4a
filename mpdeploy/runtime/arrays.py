"""Arrays as a runtime reads them: their bytes, not what numpy makes of them."""

import numpy as np

from mpdeploy.runtime.runner import Array


def in_order(array: Array) -> Array:
    """Return the array with its elements one after the other in this machine's byte order, its rank unchanged.

    A foreign byte order has the same type name; a runtime that is given the bytes would read other numbers.
    """
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return np.asarray(array, order="C")
