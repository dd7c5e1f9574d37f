"""`hoard doctor`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hoard_p2p.cli import exits
from hoard_p2p.cli.options import data_dir_option, json_option
from hoard_p2p.cli.output import write_json
from hoard_p2p.config import Json
from hoard_p2p.printing import message_text

if TYPE_CHECKING:
    from hoard_p2p.node.checkup import Line


@click.command()
@data_dir_option
@json_option
@click.option("--fix", is_flag=True, help="Repair what can be repaired here: dead mounts are taken away.")
@click.option(
    "--rebuild-index",
    is_flag=True,
    help="Make the index again from the slabs, their sidecars and the journal; no node may run.",
)
def doctor(*, data_dir: Path, as_json: bool, fix: bool, rebuild_index: bool) -> int:
    """Look whether this machine can mount, its node answers and its mounts live, and tell what to do.

    Status 1 if something does not work. A warning is something that works, with less than it could.

    \b
    Examples:
      hoard doctor
      hoard doctor --fix
      hoard doctor --rebuild-index      # after the index was lost; hashes everything
    """
    if rebuild_index:
        from hoard_p2p.cli.rebuilding import rebuild_index as rebuild

        return rebuild(data_dir, as_json=as_json)
    from hoard_p2p.node.checks import CHECKS
    from hoard_p2p.node.checkup import Patient, examine, failed

    lines = examine(CHECKS, Patient(data_dir, root=os.geteuid() == 0), fix=fix)
    bad = failed(lines)
    if as_json:
        listed: list[Json] = [
            {
                "name": line.name,
                "verdict": line.finding.verdict.value,
                "says": line.finding.says,
                "advice": line.finding.advice,
            }
            for line in lines
        ]
        write_json({"ok": not bad, "checks": listed})
    else:
        print(findings_text(lines))
    return exits.FAILED if bad else exits.DONE


def findings_text(lines: "Sequence[Line]") -> str:
    """A line for each finding, and one below it with what to do."""
    shown = []
    for line in lines:
        found = line.finding
        shown.append(f"{found.verdict.value:<8} {line.name}: {message_text(found.says)}")
        if found.advice:
            shown.append(f"{'':<8} -> {message_text(found.advice)}")
    return "\n".join(shown)
