"""Patterns of what to leave out."""

import pytest

from hoard_p2p.errors import BadRequest
from hoard_p2p.publish.exclude import Rules


def leaves_out(pattern: bytes, path: bytes, *, directory: bool = False) -> bool:
    return Rules([pattern]).leaves_out(path, path.rpartition(b"/")[2], is_directory=directory)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        (b"*.tmp", b"a.tmp"),
        (b"*.tmp", b"deep/down/a.tmp"),
        (b".git", b"x/.git"),
        (b"?at", b"x/cat"),
        (b"[a-c]x", b"bx"),
        (b"[!a-c]x", b"dx"),
        (b"[^a-c]x", b"dx"),
        (b"[]]x", b"]x"),
        (b"[!]]x", b"ax"),
        (b"[a^]", b"^"),
        (b"[\\]", b"\\"),
        (b"/top", b"top"),
        (b"a/b", b"a/b"),
        (b"/a/b", b"a/b"),
        (b"a/*.log", b"a/x.log"),
        (b"**/x", b"x"),
        (b"**/x", b"p/q/x"),
        (b"a/**/b", b"a/b"),
        (b"a/**/b", b"a/p/q/b"),
        (b"a/**", b"a/p/q"),
        (b"a/x**z", b"a/xy/yz"),
        (b"\\*", b"d/*"),
        (b"a\\[b", b"a[b"),
        (b"a[b", b"a[b"),
        (b"end\\", b"end\\"),
        (b"\xff*", b"d/\xff\xfe\n"),
        (b"*", b"new\nline"),
        (b"a+b(c)|d", b"a+b(c)|d"),
        (b"**", b"d/any"),
    ],
)
def test_a_pattern_leaves_out_what_it_describes(pattern: bytes, path: bytes) -> None:
    assert leaves_out(pattern, path)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        (b"*.tmp", b"a.tmpx"),
        (b"a.b", b"axb"),
        (b"?at", b"at"),
        (b"/top", b"d/top"),
        (b"a/b", b"d/a/b"),
        (b"a/*", b"a/b/c"),
        (b"a/?b", b"a//b"),
        (b"a[!x]b/c", b"a/b/c"),
        (b"**/x", b"p/yx"),
        (b"a/**/b", b"a/pb"),
        (b"a/**", b"a"),
        (b"\\*", b"x"),
        (b"Case", b"case"),
    ],
)
def test_a_pattern_leaves_the_rest(pattern: bytes, path: bytes) -> None:
    assert not leaves_out(pattern, path)


def test_a_slash_at_the_end_is_for_directories_only() -> None:
    assert leaves_out(b"build/", b"x/build", directory=True)
    assert not leaves_out(b"build/", b"x/build")
    assert leaves_out(b"/a/b/", b"a/b", directory=True)
    assert not leaves_out(b"/a/b/", b"x/a/b", directory=True)
    assert leaves_out(b"build", b"build", directory=True)


def test_any_of_several_patterns_will_do() -> None:
    rules = Rules([b"*.o", b"/tmp", b"cache/"])
    assert rules.leaves_out(b"d/x.o", b"x.o", is_directory=False)
    assert rules.leaves_out(b"tmp", b"tmp", is_directory=False)
    assert rules.leaves_out(b"d/cache", b"cache", is_directory=True)
    assert not rules.leaves_out(b"d/tmp", b"tmp", is_directory=False)


def test_no_patterns_leave_out_nothing() -> None:
    assert Rules([]).empty
    assert not Rules([]).leaves_out(b"x", b"x", is_directory=True)


def test_patterns_that_nothing_matched_are_told() -> None:
    rules = Rules([b"*.o", b"TRAIN/", b"/tmp", b"tmp"])
    assert rules.unmatched() == (b"*.o", b"TRAIN/", b"/tmp", b"tmp")
    rules.leaves_out(b"TRAIN", b"TRAIN", is_directory=False)
    rules.leaves_out(b"d/x.c", b"x.c", is_directory=False)
    rules.leaves_out(b"tmp", b"tmp", is_directory=True)
    assert rules.unmatched() == (b"*.o", b"TRAIN/")


@pytest.mark.parametrize(
    ("pattern", "right"),
    [(b"./a/b", "/a/b"), (b"a//b", "/a/b"), (b"../a", "/a"), (b"a/./b/", "/a/b"), (b"//a", None)],
)
def test_a_path_that_no_walk_shows_is_refused_with_the_right_one(pattern: bytes, right: str | None) -> None:
    if right is None:
        assert leaves_out(pattern, b"a")
        return
    with pytest.raises(BadRequest, match=f"write for instance '{right}'"):
        Rules([pattern])


@pytest.mark.parametrize("pattern", [b"", b"/", b"///", b"[z-a]", b"a\0b", b"./", b".."])
def test_a_pattern_that_can_match_nothing_is_refused_by_name(pattern: bytes) -> None:
    with pytest.raises(BadRequest, match="pattern"):
        Rules([pattern])
