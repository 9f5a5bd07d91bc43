"""How many collectives a step makes, and that processes which differ get errors instead of waiting for ever."""

from collectives import collectives
from processes import check_all


def test_collectives() -> None:
    check_all(2, collectives)
