"""`hoard doctor`: what a check finds, and how all of them are run. The checks themselves: `node.checks`."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from hoard_p2p.errors import HoardError

log = logging.getLogger(__name__)


class Verdict(Enum):
    """FAILED: something does not work. WARNING: it works, with less than it could."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """`says`: what is there; `advice`: what to do, empty where there is nothing to do. `cure`: does it, and tells
    what it did; None where a person has to."""

    verdict: Verdict
    says: str
    advice: str = ""
    cure: Callable[[], str] | None = None


def ok(says: str) -> Finding:
    return Finding(Verdict.OK, says)


def warning(says: str, advice: str) -> Finding:
    return Finding(Verdict.WARNING, says, advice)


def failure(says: str, advice: str) -> Finding:
    return Finding(Verdict.FAILED, says, advice)


def number_in(path: Path) -> int:
    """What a file of the kernel says; -1 if that is not known."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return -1


@dataclass(frozen=True, slots=True)
class Patient:
    """What is looked at. `root`: whether mounts and the node are those of the superuser."""

    data_dir: Path
    root: bool
    root_dir: Path = Path("/")
    """Where the files of the system are looked for."""

    @property
    def proc(self) -> Path:
        return self.root_dir / "proc"

    @property
    def sys(self) -> Path:
        return self.root_dir / "sys"


@dataclass(frozen=True, slots=True)
class Check:
    """One named check; it may find several things, or nothing (which is good)."""

    name: str
    look: Callable[[Patient], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Line:
    """One finding of one check."""

    name: str
    finding: Finding


def examine(checks: Sequence[Check], patient: Patient, *, fix: bool) -> list[Line]:
    """Run every check; `fix`: apply what cures there are. A check that fails is a finding itself: the others go on."""
    return [Line(check.name, _cured(found) if fix else found) for check in checks for found in _look(check, patient)]


def failed(lines: Iterable[Line]) -> bool:
    return any(line.finding.verdict is Verdict.FAILED for line in lines)


def _look(check: Check, patient: Patient) -> list[Finding]:
    try:
        return list(check.look(patient))
    except PermissionError as error:
        return [
            warning(f"could not be looked at by this user: {error}", "run it as the data directory's owner or root")
        ]
    except (HoardError, OSError, ValueError) as error:
        return [Finding(Verdict.FAILED, f"could not be checked: {error}")]


def _cured(found: Finding) -> Finding:
    if found.cure is None:
        return found
    try:
        return replace(found, verdict=Verdict.OK, says=f"{found.says}; {found.cure()}", advice="", cure=None)
    except (HoardError, OSError) as error:
        return replace(found, says=f"{found.says}; that could not be repaired: {error}", cure=None)
