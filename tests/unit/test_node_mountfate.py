"""When a node keeps, revives, takes over or lets go of a mount."""

from dataclasses import replace

import pytest

from hoard_p2p.node.mountfate import GRACE, MOST_FAILURES, Facts, Step, is_newer, next_step

SERVED = Facts(
    alive=True, ending=False, attached=True, supervised=True, starting=False, outdated=False, lonely=0.0, failures=0
)
ORPHAN = replace(SERVED, attached=False, supervised=False, lonely=GRACE)


@pytest.mark.parametrize("facts", [SERVED, ORPHAN, replace(SERVED, outdated=True), replace(ORPHAN, starting=True)])
def test_a_mount_that_is_gone_or_ends_on_purpose_is_let_go_whatever_else_is_so(facts: Facts) -> None:
    assert next_step(replace(facts, alive=False)) is Step.RELEASE
    assert next_step(replace(facts, ending=True)) is Step.RELEASE


def test_a_mount_without_processes_is_revived_after_a_moment_of_grace() -> None:
    assert next_step(replace(ORPHAN, lonely=GRACE / 2)) is Step.KEEP
    assert next_step(ORPHAN) is Step.REVIVE


@pytest.mark.parametrize("change", ["attached", "supervised", "starting"])
def test_a_mount_that_somebody_sees_to_is_left_alone(change: str) -> None:
    assert next_step(replace(ORPHAN, **{change: True})) is Step.KEEP


def test_each_failure_doubles_the_wait_until_the_mount_is_given_up() -> None:
    for failures in range(MOST_FAILURES):
        wait = GRACE * 2**failures
        assert next_step(replace(ORPHAN, failures=failures, lonely=wait * 0.9)) is Step.KEEP
        assert next_step(replace(ORPHAN, failures=failures, lonely=wait)) is Step.REVIVE
    assert next_step(replace(ORPHAN, failures=MOST_FAILURES, lonely=0.0)) is Step.GIVE_UP


def test_processes_of_an_older_version_are_asked_to_give_way_only_while_they_serve() -> None:
    assert next_step(replace(SERVED, outdated=True)) is Step.TAKE_OVER
    assert next_step(replace(SERVED, outdated=True, starting=True)) is Step.KEEP
    assert next_step(replace(ORPHAN, outdated=True)) is Step.REVIVE


def test_only_numbers_tell_which_version_is_newer() -> None:
    assert is_newer("0.10.0", "0.9.1") and not is_newer("0.9.1", "0.10.0")
    assert is_newer("1.0.1", "1") and not is_newer("1.0", "1") and not is_newer("1", "1.0")
    assert not any(is_newer(*pair) for pair in (("2", ""), ("2", "1.0rc1"), ("dev", "1")))
