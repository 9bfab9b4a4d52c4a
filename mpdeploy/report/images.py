"""Pictures of samples: inputs that are images, as small PNG files."""

import base64
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from mpdeploy.runtime.feeds import is_answer
from mpdeploy.runtime.lazy import headers_of

Array = np.ndarray[Any, Any]

_SIDE = 96  # pixels; larger images are thinned out
_CHANNELS = (1, 3)
_IMAGE_RANKS = (3, 4)  # an image, or a batch of them


def image_in(feed: Mapping[str, Array], row: int | None) -> Array | None:
    """Return the first image among a sample's inputs as (height, width, channels) bytes; None if there is none.

    An image is an array of one or three channels, ahead or last, and two more axes of at least 8.  Its values are
    stretched to the range of a byte.
    """
    for name, header in headers_of(feed).items():
        if len(header.shape) not in _IMAGE_RANKS or is_answer(name):
            continue
        array = np.asarray(feed[name])
        pixels = array[row] if row is not None and array.ndim == 4 and row < len(array) else array
        if pixels.ndim == 4 and len(pixels) == 1:
            pixels = pixels[0]
        image = _channels_last(pixels)
        if image is not None:
            return _bytes(_thinned(image))
    return None


def png_uri(image: Array) -> str:
    """Return a (height, width, 1 or 3) array of bytes as a PNG in a data URI (PNG specification, ISO/IEC 15948)."""
    height, width, channels = image.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1)  # filter 0
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b"")
    content = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)
    return f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _channels_last(pixels: Array) -> Array | None:
    if pixels.ndim != 3 or pixels.dtype.kind not in "fui":
        return None
    if pixels.shape[0] in _CHANNELS and min(pixels.shape[1:]) >= 8:
        return np.moveaxis(pixels, 0, -1)
    return pixels if pixels.shape[2] in _CHANNELS and min(pixels.shape[:2]) >= 8 else None


def _thinned(image: Array) -> Array:
    step = max(1, -(-max(image.shape[:2]) // _SIDE))
    return image[::step, ::step]


def _bytes(image: Array) -> Array:
    if image.dtype == np.uint8:
        return image
    wide = np.nan_to_num(image.astype(np.float64))
    low, high = wide.min(), wide.max()
    scale = 255 / (high - low) if high > low else 0
    return np.asarray(((wide - low) * scale).astype(np.uint8))
