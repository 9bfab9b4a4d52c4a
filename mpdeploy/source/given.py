"""What a user says of a model beside naming its file."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Given:
    """What a user says of a model beside naming its file.

    ``recipe`` is the file that defines a checkpoint's model, ``factory`` the function that builds the model of a
    state dict.  ``inputs`` are ``--input`` words.  ``weights`` chooses between raw ones and their average.
    ``trust`` lets a pickle execute code.  ``ignore_weights`` are patterns of stored weights that the model does not
    have and need not have; ``outputs`` the only outputs that an export keeps, all if empty.
    """

    recipe: str | None = None
    factory: str | None = None
    inputs: tuple[str, ...] = ()
    weights: str | None = None
    trust: bool = False
    ignore_weights: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


NOTHING = Given()
