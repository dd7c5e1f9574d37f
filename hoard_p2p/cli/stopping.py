"""Stopping the node of this machine: `down`, at once or when it is safe."""

import contextlib
import os
import select
from pathlib import Path

import click

from hoard_p2p.cli.answers import Fields
from hoard_p2p.cli.doors import Body, Client, Doors
from hoard_p2p.cli.options import data_dir_option, json_option
from hoard_p2p.cli.output import complain, noting_interrupt, write_json
from hoard_p2p.cli.progress import Display, Step, display
from hoard_p2p.errors import DeadlineExceeded, NoNode
from hoard_p2p.printing import size_text

DOWN_TIMEOUT = 60.0
"""Seconds that a node which has stopped listening may take to end its process."""

STALL_SECONDS = 120.0
UNDRAINED = "the node was not stopped and takes its shares again; copies that others made stay there"


@click.command()
@data_dir_option
@json_option
@click.option("--drain", is_flag=True, help="First wait until other nodes keep everything that this one has.")
@click.option(
    "--timeout",
    type=click.FloatRange(1, 86_400),
    default=STALL_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="With --drain: give up when nothing moved for so long.",
)
@click.pass_obj
def down(doors: Doors, data_dir: Path, as_json: bool, drain: bool, timeout: float) -> None:
    """Stop the node of this machine. Mounts stay, and serve what is stored here. Status 0 also if none was running.

    With --drain the node gives up its shares, others copy what only it has, and it stops once enough of them vouched
    for their copies: then the machine can be wiped. Where that cannot be (no other node, or no room there) it says so,
    goes on as before, and the status is 5; so it does after Ctrl-C.

    \b
    Examples:
      hoard down
      hoard down --drain
    """
    answer: Body = {"running": True, "drained": False}
    try:
        with doors.connect(data_dir) as client:
            if drain:
                answer |= _drained(client, timeout)
            _stop(client)
    except NoNode:
        answer["running"] = False
        complain("no node was running")
    if as_json:
        write_json(answer)
    elif answer["drained"]:
        print("drained: it is safe to remove this node's data")


def _drained(client: Client, timeout: float) -> Body:
    """Returns when it is safe; the node drains as long as this connection stands. Raises Unavailable."""
    shown = display()
    try:
        with noting_interrupt(UNDRAINED):
            body = client.call("drain", {"stall": timeout}, progress=lambda report: _show(report, shown)).body
    finally:
        shown.close()
    complain(f"{size_text(Fields(body).number('bytes'))} are kept by others")
    return {"drained": True, "bytes": body["bytes"], "snapshots": body["snapshots"]}


def _show(report: Body, shown: Display) -> None:
    fields = Fields(report)
    if fields.text("phase"):
        shown.show(Step(fields.text("phase"), fields.number("bytes_done"), fields.number_or_none("bytes")))


def _stop(client: Client) -> None:
    """Returns when the node's process has ended. Raises NoNode, DeadlineExceeded."""
    pid = Fields(client.call("ping", {}).body).number("pid")
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with contextlib.suppress(NoNode):  # it may be gone before it has answered
            client.call("down", {})
        _wait_end(process, pid)
    finally:
        os.close(process)


def _wait_end(process: int, pid: int) -> None:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    if not poll.poll(int(DOWN_TIMEOUT * 1000)):
        raise DeadlineExceeded(
            f"the node stopped listening, but its process has not ended within {DOWN_TIMEOUT:.0f} s; "
            f"look at its log, or end it with: kill -9 {pid}"
        )
