"""Options of the command line, one for each field of a scenario's parameters."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

_UNITS = {"k": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def add_options(parser: argparse.ArgumentParser, defaults: Any, choices: Mapping[str, Sequence[str]]) -> None:
    """`defaults`: a dataclass of numbers, texts and tuples of numbers; tuples are given with commas, sizes with k, M, G
    or T if one likes (powers of 1024)."""
    for one in fields(defaults):
        default = getattr(defaults, one.name)
        parser.add_argument(
            "--" + one.name.replace("_", "-"),
            type=_reader(default),
            default=default,
            choices=choices.get(one.name),
            metavar=None if one.name in choices else one.name.upper(),
            help=f"default: {_written(default)}",
        )


def _reader(default: object) -> Any:
    if isinstance(default, tuple):
        return lambda text: tuple(_number(type(default[0]), part) for part in text.split(","))
    return type(default) if isinstance(default, str) else lambda text: _number(type(default), text)


def _number(kind: type, text: str) -> Any:
    unit = _UNITS.get(text[-1:], 1)
    number = float(text[:-1] if unit > 1 else text) * unit
    return kind(number)


def _written(default: object) -> str:
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
