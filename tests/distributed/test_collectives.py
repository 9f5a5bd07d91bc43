"""How many collectives a step makes, and that processes which differ get errors instead of waiting for ever."""

from behaviours import collectives
from processes import run


def test_collectives() -> None:
    for rank, outcome in enumerate(run(2, collectives)):
        wrong = {name: text for name, text in outcome.items() if text}
        assert not wrong, f"process {rank}:\n" + "\n".join(map("\n".join, wrong.items()))
