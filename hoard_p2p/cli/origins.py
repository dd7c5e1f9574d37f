"""How the origins of snapshots are shown."""

from collections.abc import Iterator

from hoard_p2p.cli.answers import Fields
from hoard_p2p.cli.output import table
from hoard_p2p.printing import printable, size_text


def origins_text(answer: Fields) -> str:
    """The origins that known snapshots name, and why some cannot be read here; empty if there are none."""
    rows = [
        (
            printable(origin.text("url")),
            "yes" if origin.body.get("readable") else "no",
            f"{origin.number('nodes'):,}",
            size_text(origin.number("read")),
            f"{origin.number('errors'):,}",
        )
        for origin in answer.rows("origins")
    ]
    if not rows:
        return ""
    header = ("ORIGIN", "READABLE HERE", "READ BY NODES", "READ", "ERRORS")
    return "\n".join(("origins", table(header, rows, indent="  "), *_reasons(answer)))


def _reasons(answer: Fields) -> Iterator[str]:
    for origin in answer.rows("origins"):
        if why := origin.text("why") or origin.text("last_error"):
            yield f"  {printable(why)}"
