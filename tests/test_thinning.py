"""What `make test` leaves out of the combinations of a test, and what it never does."""

from dataclasses import dataclass
from itertools import product
from typing import Any

from thinning import Value, chosen_of

BACKENDS = ("reference", "native", "lists")
DTYPES = ("float32", "float64", "bfloat16", "float16")
SETTINGS = [(case, options) for case in ("adamw", "lamb", "sgd") for options in range(7)]


@dataclass(frozen=True)
class Item:
    nodeid: str


def combinations() -> dict[Any, list[Value]]:
    return {
        Item(f"{case}-{options}-{backend}-{dtype}"): [
            Value(("case", "options"), (case, options), case),
            Value(("backend",), (backend,)),
            Value(("dtype",), (dtype,)),
        ]
        for (case, options), backend, dtype in product(SETTINGS, BACKENDS, DTYPES)
    }


def test_every_two_values_meet_and_every_set_of_options_is_there() -> None:
    every = combinations()
    kept = [tuple(v.values for v in every[item]) for item in chosen_of(every)]
    assert len(kept) < len(every) / 4
    assert {setting for setting, _, _ in kept} == set(SETTINGS)
    for case in ("adamw", "lamb", "sgd"):
        first = [(backend, dtype) for setting, backend, dtype in kept if setting == (case, 0)]
        assert {backend for (backend,), _ in first} == set(BACKENDS)
        assert {dtype for _, (dtype,) in first} == set(DTYPES)
    assert {(b, d) for _, (b,), (d,) in kept} == set(product(BACKENDS, DTYPES))
    further = [backend for (_, number), (backend,), _ in kept if number]
    assert set(further) == set(BACKENDS)  # not all on the same


def test_the_choice_does_not_depend_on_the_order() -> None:
    """Workers that collect in another order must choose the same."""
    every = combinations()
    first_of_each = {item for item, values in every.items() if values[0].values[1] == 0}
    others = [item for item in reversed(every) if item not in first_of_each]
    turned = {item: every[item] for item in [*first_of_each, *others]}
    assert chosen_of(turned) == chosen_of(every)
