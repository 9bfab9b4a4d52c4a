"""Text from files and from strangers, made fit for a terminal, a log, a page."""


def one_line(text: str) -> str:
    """Return the text as one line in which nothing steers a terminal or forges another line.

    Control characters (ESC, C1), line breaks, BiDi overrides and all else that is not printable become their escapes.
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def json_escaped(text: str) -> str:
    """Return a JSON document with what is not printable in it as ``\\\\uXXXX``; its line breaks stay."""
    return "".join(c if c.isprintable() or c == "\n" else _units(c) for c in text)


def _units(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
