"""Which backend is chosen, and what is said about one that is unknown or unavailable."""

import pytest

from cases import BACKENDS, CASES, Case, each_case
from ingot import backends
from training import SHAPES, give_grads, make_params, train


@each_case
def test_the_automatic_choice_is_the_first_of_the_table(case: Case) -> None:
    params = make_params(SHAPES)
    optimizer = case.make(params)
    give_grads(params, 0)
    buckets = optimizer._plan()
    assert {bucket.backend.name for bucket in buckets} == {BACKENDS[0]}
    assert backends.choose_for("cpu")[0] == BACKENDS[0]


@each_case
def test_an_unknown_backend_is_refused_with_the_list(case: Case) -> None:
    with pytest.raises(ValueError, match=r"'nonsense'.*'native', 'triton', 'lists', 'reference'"):
        case.make(make_params(), backend="nonsense")


@each_case
def test_an_unavailable_backend_is_refused_with_the_reason(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = backends.TABLE[0]
    monkeypatch.setattr(type(native), "unavailable", lambda self: "no such luck")
    with pytest.raises(ValueError, match=r"native.*no such luck"):
        case.make(make_params(), backend="native")
    params = make_params()
    optimizer = case.make(params)
    train(optimizer, params, 1)  # the automatic choice falls through
    assert backends.choose_for("cpu")[0] == "lists"


def test_the_choice_on_a_cpu_without_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lists backend, with a warning; an earlier version called it flat."""
    monkeypatch.setattr(type(backends.NATIVE), "unavailable", lambda self: "not built")
    backends.warn_without_core.cache_clear()
    with pytest.warns(UserWarning, match="not built; steps on the CPU take several times longer"):
        params = make_params([(2,)])
        train(CASES["lamb"].make(params), params, 1)
    for shapes, name in [([(16, 64)] * 20, None), ([(512, 512)], None), ([(512, 512)], "flat")]:
        params = make_params(shapes)
        optimizer = CASES["lamb"].make(params, backend=name)
        give_grads(params, 0)
        (bucket,) = optimizer._plan()
        assert bucket.backend.name == "lists"
