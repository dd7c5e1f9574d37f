"""Origins: how those of snapshots are shown, and `origin check`."""

import os
from collections.abc import Iterator
from pathlib import Path

import click

from hoard_p2p.cli import exits
from hoard_p2p.cli.answers import Fields
from hoard_p2p.cli.doors import Body, Doors
from hoard_p2p.cli.options import TEXT, data_dir_option, json_option
from hoard_p2p.cli.output import complain, seconds_text, table, write_json
from hoard_p2p.cli.progress import Display, Step, display
from hoard_p2p.cli.publishing import open_source
from hoard_p2p.cli.sources import S3Options, origin_url, source_path
from hoard_p2p.printing import name_text, printable, size_text

SKEW_SHOWN = 60.0
"""Seconds that a server's clock may differ before it is told: signatures are refused from 15 minutes on."""

SHOWN_NAMES = 20

CREDENTIALS = {
    "env": "AWS_ACCESS_KEY_ID in the node's environment",
    "shared-credentials-file": "~/.aws/credentials",
    "config-file": "~/.aws/config",
    "iam-role": "the role of this machine",
    "container-role": "the role of this container",
    "assume-role": "an assumed role",
    "assume-role-with-web-identity": "an assumed role (web identity)",
    "sso": "AWS SSO",
}
"""What botocore calls the places where it found them, in words; others as it calls them."""


def origins_text(answer: Fields) -> str:
    """The origins that known snapshots name, and why some cannot be read here; empty if there are none."""
    rows = [
        (
            printable(origin.text("url")),
            "yes" if origin.body.get("readable") else "no",
            f"{origin.number('nodes'):,}",
            size_text(origin.number("read")),
            f"{size_text(origin.number('spared'))}{_ratio(origin)}",
            f"{size_text(origin.number('rate'))}/s",
            f"{origin.number('errors'):,}",
        )
        for origin in answer.rows("origins")
    ]
    if not rows:
        return ""
    header = ("ORIGIN", "READABLE HERE", "READ BY NODES", "READ", "FROM NODES INSTEAD", "NOW", "ERRORS")
    return "\n".join(("origins", table(header, rows, indent="  "), *_bounds(answer), *_reasons(answer)))


def _ratio(origin: Fields) -> str:
    """What part of all that came is not from the origin."""
    spared, read = origin.number("spared"), origin.number("read")
    return f" ({100 * spared // (spared + read)}%)" if spared + read else ""


def _bounds(answer: Fields) -> Iterator[str]:
    """What of the bounds on reading origins is to be told."""
    for origin in answer.rows("origins"):
        told = []
        if limit := origin.number("limit_cluster"):
            told.append(f"at most {size_text(limit)}/s of all nodes, {size_text(origin.number('limit'))}/s of this one")
        if times := origin.number("throttled"):
            streams = f"{origin.number('streams'):,} streams"
            told.append(f"asked to be asked less {times:,} times, now {streams}")
        if bypassed := origin.number("bypassed"):
            left = size_text(origin.number("bypass_left"))
            told.append(f"{size_text(bypassed)} read past readers that were late, {left} more may be")
        if told:
            yield f"  {printable(origin.text('url'))}: {'; '.join(told)}"


def _reasons(answer: Fields) -> Iterator[str]:
    for origin in answer.rows("origins"):
        if why := origin.text("why") or origin.text("last_error"):
            yield f"  {printable(why)}"


@click.group()
def origin() -> None:
    """Look at origins: where the bytes of data sets can be read.

    \b
    Example:
      hoard origin check s3://bucket/prefix
    """


@origin.command()
@click.argument("url", type=TEXT)
@data_dir_option
@json_option
@click.option("--endpoint-url", default=None, metavar="URL", help="Of an S3 store that is not AWS's.")
@click.option("--region", default=None, metavar="REGION", help="Of an S3 bucket, if it is not the node's own.")
@click.option("--anonymous", is_flag=True, help="Ask an S3 store without credentials.")
@click.option("--request-payer", is_flag=True, help="This node's account pays for the requests to an S3 bucket.")
@click.pass_obj
def check(
    doors: Doors,
    *,
    url: str,
    data_dir: Path,
    as_json: bool,
    endpoint_url: str | None,
    region: str | None,
    anonymous: bool,
    request_payer: bool,
) -> int:
    """Tell whether this node can read the origin URL, how fast, and what of it can be in no snapshot.

    The node asks, so its credentials count. It lists up to 10,000 entries, reads a few, and publishes nothing.
    Exit status 5: it cannot be reached or read from here; 1: some entries can be in no snapshot (or, of a directory,
    cannot be read); else 0, also where peers may not make this node read it yet.

    \b
    Examples:
      hoard origin check s3://bucket/prefix
      hoard origin check --json https://host/folder/ | jq .read_rate
      hoard origin check /mnt/nfs/datasets
    """
    path = source_path(url)
    if path is None:
        source = origin_url(url, S3Options(endpoint_url, region, anonymous, request_payer), os.environ)
    else:
        source = name_text(os.fsencode(path.absolute()))
    body = _asked(doors, data_dir, source, path)
    if as_json:
        write_json(body)
    else:
        print(check_text(body))
    seen = Fields(body)
    if seen.text("why"):
        complain(seen.text("why"))
        return exits.UNAVAILABLE
    return exits.FAILED if seen.number("skipped") else exits.DONE


def _asked(doors: Doors, data_dir: Path, source: str, path: Path | None) -> Body:
    fds = [] if path is None else [open_source(path)]
    shown = display()
    try:
        with doors.connect(data_dir) as client:
            told = client.call("origin_check", {"source": source}, fds=fds, progress=lambda r: _progress(r, shown))
            return told.body
    finally:
        shown.close()
        for fd in fds:
            os.close(fd)


def _progress(report: Body, shown: Display) -> None:
    fields = Fields(report)
    shown.show(Step(fields.text("phase"), fields.number("entries"), None, in_bytes=False))


def check_text(body: Body) -> str:
    """The outcome as a person reads it."""
    seen = Fields(body)
    reachable = seen.flag("reachable")
    rows = [
        ("origin", printable(seen.text("url"))),
        ("reachable", "yes" if reachable else "no"),
    ]
    if credentials := printable(seen.text("credentials")):
        rows.append(("credentials", CREDENTIALS.get(credentials, credentials)))
    if reachable:
        rows.append(("versions", printable(seen.text("versions"))))
    if reachable or seen.flag("allowed"):
        rows.append(("peers may have this node read it", _allowed(seen)))
    if seen.number("entries") or seen.flag("complete"):
        rows += list(_listing(seen))
    lines = [f"{name + ':':<34}{value}" for name, value in rows]
    lines += [f"  {name}" for name in seen.texts("skipped_names")[:SHOWN_NAMES]]
    return "\n".join(lines)


def _allowed(seen: Fields) -> str:
    if seen.flag("allowed"):
        return "yes"
    return f"no, until {printable(seen.text('allow_command'))}, or until it is published here"


def _listing(seen: Fields) -> Iterator[tuple[str, str]]:
    more = "" if seen.flag("complete") else ", and more"
    size = size_text(seen.number("size"))
    rate = f"{seen.number('listing_rate'):,} entries/s"
    yield "listed", f"{seen.number('entries'):,} entries, {seen.number('files'):,} files of {size}{more}; {rate}"
    if samples := seen.number("samples"):
        first = seen.body.get("first_byte")
        wait = seconds_text(first) if isinstance(first, float) else "?"
        yield "read", f"{samples} samples, {size_text(seen.number('read_rate'))}/s, first byte after {wait}"
    skew = seen.body.get("skew")
    if isinstance(skew, float) and abs(skew) > SKEW_SHOWN:
        yield "clock", f"the server's is {seconds_text(abs(skew))} {'ahead of' if skew > 0 else 'behind'} this node's"
    if special := seen.number("special"):
        yield "left out", f"{special:,} special files (devices, sockets, FIFOs)"
    if skipped := seen.number("skipped"):
        yield "can be in no snapshot", f"{skipped:,} entries{more and ' of those listed'}"
