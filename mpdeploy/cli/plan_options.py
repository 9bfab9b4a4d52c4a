"""The options that say how a conversion is planned: the same for every command that converts."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def plan_options(command: Command) -> Command:
    """Add the options below; the command gets each by its name."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option("--keep-fp32", multiple=True, metavar="NODE_GLOB", help="Keep these nodes in FP32."),
    click.option("--op-fp32", multiple=True, metavar="OP", help="Keep all operators of this type in FP32."),
    click.option("--low-io", is_flag=True, help="Give inputs and outputs the low format, too."),
    click.option(
        "--target",
        type=click.Choice(["any", "tensorrt", "rtx", "openvino", "onnxruntime"]),
        help="What the model is for: whose limits count [default: any, what engines are built for].",
    ),
)
