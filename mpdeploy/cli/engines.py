"""An engine's record in words, for whoever built it and whoever finds it."""

from typing import TYPE_CHECKING

from mpdeploy.cli.console import say

if TYPE_CHECKING:
    from mpdeploy.engine.network import Census, Port
    from mpdeploy.engine.record import EngineRecord


def show_engine(record: "EngineRecord", title: str) -> None:
    """Print what an engine is: size, builder, targets, arithmetic, weights, inputs and outputs, ranges, origin."""
    census = record.census
    say(f"{title}  {record.engine.bytes / 1e6:.1f} MB, {record.backend} {record.backend_version}")
    say(f"  runs on     SM {', '.join(map(str, record.capabilities))}")
    say(f"  arithmetic  {_arithmetic(census)}")
    say(f"  weights     {_counts(census.weights)} elements")
    for profile in record.options.profiles:
        say(f"  shapes      {' '.join(map(str, profile.ranges))}")
    if record.inspected is not None:
        say(f"  inspected   {_counts(record.inspected)} layer outputs in the finished engine")
    if record.reused:
        say("  origin      the build cache")
    if record.spread is not None:
        say(f"  rebuilds    {record.spread.builds} builds, {record.spread.distinct} distinct")
    for text in record.warnings:
        say(f"  warning     {text}")


def explain_engine(record: "EngineRecord", title: str) -> None:
    """Print what ``show_engine`` does, and where the engine comes from."""
    show_engine(record, title)
    for what, ports in (("input", record.inputs), ("output", record.outputs)):
        for port in ports:
            say(f"  {what:10}  {_port(port)}")
    source = record.source.files[0]
    say(f"  built from  {source.name}, SHA-256 {source.sha256[:12]}…, by mpdeploy {record.tool_version}")
    say(f"  built on    {record.gpu or 'no GPU'}, {record.system}")
    if record.expected is not None:
        say(f"  held to     {record.expected} arithmetic{' and its plan' if record.plan else ''}")
    elif record.plan is not None:
        say("  held to     its plan")
    if record.options.features:
        say(f"  features    {', '.join(feature.value for feature in record.options.features)}")
    say(f"  TF32        {'allowed' if record.options.tf32 else 'off'}")
    if record.drift is not None:
        say(f"  drift       {'pass' if record.drift.passed else 'FAIL'}: {record.drift.headline}")


def _arithmetic(census: "Census") -> str:
    if not census.compute:
        return f"no products; {_counts(census.outputs)} layer outputs"
    return f"{_counts(census.compute)} {'product' if sum(census.compute.values()) == 1 else 'products'}"


def _port(port: "Port") -> str:
    shape = ",".join("?" if size is None else str(size) for size in port.shape)
    return f"{port.name} {port.type}[{shape}]{', whose values decide shapes' if port.holds_shape else ''}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items()) or "no"
