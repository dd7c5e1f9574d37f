"""Options that several commands share."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hoard_p2p.cli.paths import whole_snapshot
from hoard_p2p.config import default_data_dir
from hoard_p2p.errors import BadRequest

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_TIME = re.compile(r"(\d{1,9})([smhdw])?")

F = TypeVar("F", bound=Callable[..., Any])  # a command function of any signature, returned as it came


if TYPE_CHECKING:  # generic since click 8.4, for type checkers
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType


class NotEmpty(ParamType):
    """What another type takes, but for the empty text: an unset variable in a script must not mean the current
    directory, or a default."""

    def __init__(self, inner: ParamType) -> None:
        self._inner = inner
        self.name = inner.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty; is a variable not set?", param, ctx)
        return self._inner.convert(value, param, ctx)


class _Snapshot(ParamType):
    """A name, an id or a prefix of one."""

    name = "snapshot"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return whole_snapshot(value)
        except BadRequest as error:
            self.fail(str(error), param, ctx)


class _UntouchedPath(ParamType):
    """A path, not even looked at: what is mounted there may not answer."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return Path(value)


class _Time(ParamType):
    """A time in seconds, minutes, hours, days or weeks; handed on in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = _TIME.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} is no time; write 30d, 12h, 90m, 0 (units: s m h d w)", param, ctx)
        return int(match[1]) * _SECONDS[match[2] or "s"]


TEXT = NotEmpty(click.STRING)
PATH = NotEmpty(_UntouchedPath())
SNAPSHOT = NotEmpty(_Snapshot())
TIME = NotEmpty(_Time())


def _absolute(_context: click.Context, _parameter: click.Parameter, value: Path | None) -> Path:
    return default_data_dir() if value is None else value.absolute()


def data_dir_option(command: F) -> F:
    """`--data-dir`, handed on as `data_dir: Path`: chooses the node on this machine."""
    return click.option(
        "--data-dir",
        type=NotEmpty(click.Path(path_type=Path, file_okay=False, readable=False)),
        callback=_absolute,
        help="The node's data directory [default: $HOARD_DATA_DIR, else /var/lib/hoard as root, "
        "else $XDG_DATA_HOME/hoard].",
    )(command)


def json_option(command: F) -> F:
    """`--json`, handed on as `as_json: bool`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(command)
