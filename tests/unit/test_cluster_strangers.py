"""What others may say of addresses."""

import pytest

from hoard_p2p.cluster.strangers import is_sayable
from hoard_p2p.testing.network import a_peer

FAR = a_peer(1, "10.0.0.1", 7000)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::", ""])
def test_a_service_of_this_machine_cannot_be_named_as_a_node_from_another(host: str) -> None:
    here = a_peer(2, host, 6379)
    assert not is_sayable(here, by=FAR)
    assert is_sayable(here, by=a_peer(3, "127.0.0.1", 7001))
    assert is_sayable(here, by=here), "of itself it says what it was reached at"


def test_other_addresses_can_be_named_by_all() -> None:
    assert is_sayable(a_peer(2, "10.0.0.2", 7000), by=FAR)
