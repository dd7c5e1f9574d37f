"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from hoard_p2p.config import default_data_dir

F = TypeVar("F", bound=Callable[..., Any])  # a command function of any signature, returned as it came


def _absolute(_context: click.Context, _parameter: click.Parameter, value: Path | None) -> Path:
    return default_data_dir() if value is None else value.absolute()


def data_dir_option(command: F) -> F:
    """`--data-dir`, handed on as `data_dir: Path`: chooses the node on this machine."""
    return click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False),
        callback=_absolute,
        help="The node's data directory [default: $HOARD_DATA_DIR, else /var/lib/hoard as root, "
        "else $XDG_DATA_HOME/hoard].",
    )(command)


def json_option(command: F) -> F:
    """`--json`, handed on as `as_json: bool`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(command)
