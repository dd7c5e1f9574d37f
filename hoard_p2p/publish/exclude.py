"""Patterns of what to leave out, much like rsync's, on bytes.

- A pattern without `/` matches a name at any depth: `*.tmp`, `.git`.
- A pattern with `/` inside or in front matches the whole path below the published directory: `/cache`, `train/*.log`.
- A `/` at the end matches directories only: `build/`.
- `*` and `?` match any bytes and one byte, but not `/`; `[a-z]`, `[!a-z]` one byte of a set; `\\` takes the next byte
  as it is. `**` also crosses directories: `**/x`, `a/**/b` (also `a/b`), `a/**` (everything below `a`).
- What matches is left out, and nothing below an excluded directory is looked at.
"""

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from hoard_p2p.errors import BadRequest


class _Rule(NamedTuple):
    """One pattern: its regular expression, whether it is for whole paths, whether only for directories."""

    expression: bytes
    whole: bool
    only_directories: bool

    def matches(self, path: bytes, name: bytes, *, is_directory: bool) -> bool:
        if self.only_directories and not is_directory:
            return False
        return re.fullmatch(self.expression, path if self.whole else name, re.DOTALL) is not None


class Rules:
    """Compiled patterns. Raises BadRequest for a pattern that cannot match anything."""

    def __init__(self, patterns: Sequence[bytes]) -> None:
        parsed = [_parse(pattern) for pattern in patterns]
        self._patterns = tuple(patterns)
        self._parsed = parsed
        self._used: set[int] = set()  # two threads add to it, none takes away
        self._names = _either([text for text, whole, only_dir in parsed if not whole and not only_dir])
        self._paths = _either([text for text, whole, only_dir in parsed if whole and not only_dir])
        self._dir_names = _either([text for text, whole, only_dir in parsed if not whole and only_dir])
        self._dir_paths = _either([text for text, whole, only_dir in parsed if whole and only_dir])
        self.empty = not patterns

    def leaves_out(self, path: bytes, name: bytes, *, is_directory: bool) -> bool:
        """Whether the entry at `path` (relative to the published directory; its last component is `name`) is left out.
        Says nothing about its parents."""
        found = self._matches(path, name, is_directory)
        if found and len(self._used) < len(self._parsed):
            self._note_used(path, name, is_directory)
        return found

    def unmatched(self) -> tuple[bytes, ...]:
        """The patterns that nothing matched of all that was asked about."""
        return tuple(pattern for at, pattern in enumerate(self._patterns) if at not in self._used)

    def _note_used(self, path: bytes, name: bytes, is_directory: bool) -> None:
        for at, rule in enumerate(self._parsed):
            if at not in self._used and rule.matches(path, name, is_directory=is_directory):
                self._used.add(at)

    def _matches(self, path: bytes, name: bytes, is_directory: bool) -> bool:
        return bool(
            (self._names and self._names.fullmatch(name))
            or (self._paths and self._paths.fullmatch(path))
            or (
                is_directory
                and (
                    (self._dir_names and self._dir_names.fullmatch(name))
                    or (self._dir_paths and self._dir_paths.fullmatch(path))
                )
            )
        )


def _either(expressions: list[bytes]) -> re.Pattern[bytes] | None:
    if not expressions:
        return None
    return re.compile(b"|".join(b"(?:" + text + b")" for text in expressions), re.DOTALL)


def _parse(pattern: bytes) -> _Rule:
    only_directories = pattern.endswith(b"/")
    body = pattern.rstrip(b"/") if only_directories else pattern
    whole = b"/" in body
    body = body.lstrip(b"/")
    if not body or b"\0" in body:
        raise BadRequest(f"pattern {pattern!r} can match nothing; write for instance '*.tmp', 'build/' or '/cache'")
    if b"" in body.split(b"/") or not {b".", b".."}.isdisjoint(body.split(b"/")):
        plain = b"/".join(part for part in body.split(b"/") if part not in (b"", b".", b".."))
        raise BadRequest(
            f"pattern {os.fsdecode(pattern)!r} can match nothing: paths begin below the published directory and hold "
            f"no //, ./ or ../; write for instance {'/' + os.fsdecode(plain)!r}"
        )
    expression = _expression(body)
    try:
        re.compile(expression)
    except re.error as error:
        raise BadRequest(f"pattern {pattern!r} has a set that cannot be read: {error}") from error
    return _Rule(expression, whole, only_directories)


_TOKEN = re.compile(rb"(/)?\*\*+(/)?|\*|\?|\\.|\[[!^]?\]?[^\]]*\]|.", re.DOTALL)


def _expression(body: bytes) -> bytes:
    return b"".join(_translate(token) for token in _TOKEN.finditer(body))


def _translate(token: re.Match[bytes]) -> bytes:
    text = token[0]
    if b"**" in text and not text.startswith((b"\\", b"[")):
        return _crossing(token[1] or b"", token[2] or b"")
    if text == b"*":
        return b"[^/]*"
    if text == b"?":
        return b"[^/]"
    if text.startswith(b"[") and len(text) > 1:
        return _set(text)
    return re.escape(text[1:] if len(text) == 2 else text)


def _crossing(before: bytes, after: bytes) -> bytes:
    """`**` between its slashes: with one on both sides it stands for no directory too."""
    if before and after:
        return b"/(?:.*/)?"
    if after:
        return b"(?:.*/)?"
    return before + b".*"


def _set(text: bytes) -> bytes:
    inner = text[1:-1]
    negated = inner[:1] in (b"!", b"^")
    members = (inner[1:] if negated else inner).replace(b"\\", b"\\\\").replace(b"]", b"\\]").replace(b"[", b"\\[")
    members = members.replace(b"&", b"\\&").replace(b"~", b"\\~").replace(b"|", b"\\|").replace(b"^", b"\\^")
    return (b"(?!/)[^" if negated else b"(?!/)[") + members + b"]"
