"""How long a suspect has to answer, and how well this node itself does. Pure.

Lifeguard (Dadgar, Phillips, Currey 2018): the time shrinks as others confirm the suspicion, and grows while this node
misses answers from many: it is the one with the bad network then.
"""

from math import log, log10

from hoard_p2p.cluster.states import Timing

MOST_ILL = 3


class Health:
    """Counts this node's own failures: 0 is well."""

    def __init__(self) -> None:
        self.ill = 0

    @property
    def slack(self) -> int:
        """By how much waits are longer than usual."""
        return 1 + self.ill

    def was_well(self) -> None:
        self.ill = max(0, self.ill - 1)

    def was_ill(self) -> None:
        self.ill = min(MOST_ILL, self.ill + 1)


def suspicion_time(timing: Timing, nodes: int, confirmed: int, slack: int) -> float:
    """Seconds from the first failed probe to the verdict, when `confirmed` others of a view of `nodes` suspect too."""
    shortest = timing.suspicion + timing.suspicion_decade * log10(max(1, nodes))
    needed = min(timing.confirmations, nodes - 2)
    if needed <= 0:
        return shortest * slack
    share = log(min(confirmed, needed) + 1) / log(needed + 1)
    return shortest * slack * (timing.suspicion_most - (timing.suspicion_most - 1) * share)
