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


def _capture() -> State:
    kind, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)
    version, words, next_gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys).astype(np.int64)), int(place), int(has_gauss), gauss],
        "python": [version, torch.tensor(words), next_gauss],
    }


def _restore(state: State) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    kind, keys, place, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), place, has_gauss, gauss))
    version, words, next_gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), next_gauss))
