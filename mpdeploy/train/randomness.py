"""Random numbers of every kind that a recipe may draw: torch's, CUDA's, numpy's and Python's."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

State = dict[str, Any]  # plain data and tensors: loads with weights_only=True


class Randomness:
    """A training's own random numbers, decided by seed and rank; the caller's are left as they were found."""

    def __init__(self, seed: int, rank: int = 0) -> None:
        outside = _capture()
        torch.manual_seed(seed + (rank << 32))  # seeds CUDA, too
        np.random.seed([seed % 2**32, rank])
        random.seed(seed + (rank << 32))
        self._state = _capture()
        self._active = False
        _restore(outside)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Let all draw from the training's numbers while the context lasts, going on where they stopped."""
        outside = _capture()
        _restore(self._state)
        self._active = True
        try:
            yield
        finally:
            self._state = _capture()
            self._active = False
            _restore(outside)

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Let what is drawn inside be drawn anew afterwards, if it ends in an exception."""
        before = _capture()
        try:
            yield
        except BaseException:
            _restore(before)
            raise

    def state_dict(self) -> State:
        """Return where the numbers stand."""
        return _capture() if self._active else self._state

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state; raise whatever comes to torch, numpy or Python if it is none."""
        outside = _capture()
        try:
            _restore(state)
        finally:
            _restore(outside)
        self._state = state


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Leave the CPU's random numbers as they were, whatever is drawn inside."""
    outside = torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(outside[0])
        np.random.set_state(outside[1])
        random.setstate(outside[2])


def draw_from(*numbers: int) -> None:
    """Let what is drawn on the CPU from here on follow from ``numbers`` alone."""
    seed = mixed(*numbers)
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def mixed(*numbers: int) -> int:
    """Return a seed that follows from several numbers, in which no order and no sum of them is like another."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _capture() -> State:
    kind, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)
    version, words, next_gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        # Of the device in use alone: another machine may have others.
        "cuda": [torch.cuda.get_rng_state()] if torch.cuda.is_available() else [],
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys).astype(np.int64)), int(place), int(has_gauss), gauss],
        "python": [version, torch.tensor(words), next_gauss],
    }


def _restore(state: State) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"][0])
    kind, keys, place, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), place, has_gauss, gauss))
    version, words, next_gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), next_gauss))
