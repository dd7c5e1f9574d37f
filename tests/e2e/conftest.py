"""Helpers of these tests that assert things show what differs, as the tests themselves do."""

import pytest

pytest.register_assert_rewrite("tests.e2e.disks")
