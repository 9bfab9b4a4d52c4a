"""Models of ultralytics, which compute in one way when they are used and in another when they are exported."""

from torch import nn

_HEADS = "ultralytics.nn.modules.head"


def switch_to_export(module: nn.Module) -> None:
    """Tell the heads of an ultralytics model that they are exported, as that library's own export does.

    Then they return what a deployment needs (boxes, and masks' prototypes) without the inner feature maps, and make
    their anchors anew for every size.  Other models are left alone.
    """
    for part in module.modules():
        if type(part).__module__ == _HEADS and hasattr(part, "export"):
            part.export, part.dynamic, part.format = True, True, "onnx"  # type: ignore[assignment]
