"""What a converted model is for: whose limits count beside those of ONNX."""

from enum import Enum

from mpdeploy.errors import UsageError


class Target(Enum):
    """The runtimes by the name that flags use; ``any`` is what engines are built for."""

    ANY = "any"
    TENSORRT = "tensorrt"
    RTX = "rtx"
    OPENVINO = "openvino"
    ONNXRUNTIME = "onnxruntime"

    @property
    def builds_engines(self) -> bool:
        """Whether the limits of the TensorRT builders count."""
        return self in (Target.ANY, Target.TENSORRT, Target.RTX)


def target_named(name: str | None) -> Target:
    """Return the target of that name, ``any`` without one; raises ``UsageError`` for a name that is none."""
    try:
        return Target.ANY if name is None else Target(name)
    except ValueError as error:
        known = ", ".join(target.value for target in Target)
        raise UsageError(f"there is no target {name!r}", remedy=f"the targets are {known}") from error
