"""How names, sizes and tables are shown."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoard_p2p.cli.output import seconds_text, table, write_json, write_names
from hoard_p2p.printing import message_text, name_text, printable, size_text


def test_an_ordinary_name_is_shown_as_it_is() -> None:
    assert printable("Grüße/日本 1.jpg".encode()) == "Grüße/日本 1.jpg"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"\x1b[2Jx", r"\x1b[2Jx"),
        (b"a\nb", r"a\x0ab"),
        (b"\xff\xfe", r"\xff\xfe"),
        ("\u202egpj.exe".encode(), r"\u202egpj.exe"),
        (b"back\\slash", r"back\\slash"),
    ],
)
def test_what_a_terminal_might_act_on_is_escaped(name: bytes, shown: str) -> None:
    assert printable(name) == shown


@given(st.binary(), st.binary())
def test_distinct_names_stay_distinct(one: bytes, other: bytes) -> None:
    assert (printable(one) == printable(other)) == (one == other)


@given(st.binary())
def test_a_shown_name_is_printable(name: bytes) -> None:
    assert printable(name).isprintable()


@given(st.binary())
def test_a_name_survives_json(name: bytes) -> None:
    assert json.loads(json.dumps(name_text(name))).encode("utf-8", "surrogateescape") == name


def test_a_message_keeps_its_lines_and_nothing_else_that_acts() -> None:
    assert message_text("two\nlines \x1b[31m C:\\x") == "two\nlines \\x1b[31m C:\\x"


def test_json_is_ascii(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    write_json({"name": name_text(b"\xff\xc3\xbc")})
    assert capsysbinary.readouterr().out == b'{\n  "name": "\\udcff\\u00fc"\n}\n'


def test_names_in_a_pipe_are_raw_bytes(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write_names([b"a\nb", b"\xff"], nul=True)
    assert capfdbinary.readouterr().out == b"a\nb\0\xff\0"


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536 << 20, "1.5 GiB"), (1 << 60, "1024.0 PiB")],
)
def test_sizes_have_units(size: int, shown: str) -> None:
    assert size_text(size) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.384, "0.38 s"), (61.26, "61.3 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations_have_units(seconds: float, shown: str) -> None:
    assert seconds_text(seconds) == shown


def test_a_table_aligns_numbers_to_the_right_and_text_to_the_left() -> None:
    assert table(("NAME", "FILES"), [("a", "1,000"), ("long name", "7")]).splitlines() == [
        "NAME       FILES",
        "a          1,000",
        "long name      7",
    ]
