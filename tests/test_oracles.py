"""The reference backend computes what implementations nobody here wrote compute."""

import warnings

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

from cases import CASES, SETTINGS, Case, Options, each_case
from training import give_grads, make_params

# Without zero-size tensors: two of the oracles divide by the number of elements.
SHAPES = [(7,), (4, 3), (), (1,), (2, 3, 2, 2), (33, 31), (65,), (1, 17)]
COMPARED = (1, 2, 5, 15)  # the steps after which everything is compared


# Where an oracle lacks an option, other tests compare with plain torch (test_formulas, test_clip).
COMPARABLE = [each for each in SETTINGS if each.values[0].oracle(make_params(), each.values[1])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("case", "options"), COMPARABLE)
def test_like_the_oracle(case: Case, options: Options, dtype: torch.dtype) -> None:
    ours, theirs = make_params(SHAPES, dtype), make_params(SHAPES, dtype)
    oracle = case.oracle(theirs, options)
    assert oracle is not None
    optimizer = case.make(ours, **options, backend="reference")
    rtol, atol = case.close[dtype]
    names = case.kind.spec.variant(optimizer.param_groups[0]).states
    for step in range(1, COMPARED[-1] + 1):
        give_grads(ours, step)
        give_grads(theirs, step)
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the oracles call torch in ways of its first years
            oracle.step()
        if step not in COMPARED:
            continue
        for our, their in zip(ours, theirs, strict=True):
            torch.testing.assert_close(our, their, rtol=rtol, atol=atol)
            for name in names:
                expected = oracle.state[their][case.state_names[name]]
                torch.testing.assert_close(
                    optimizer.state[our][name], expected, rtol=rtol, atol=atol
                )


@each_case
def test_the_oracle_covers_most_options(case: Case) -> None:
    """If an oracle refused its options, the test above would quietly compare nothing."""
    assert sum(each.values[0] is case for each in COMPARABLE) >= 5


def test_all_of_torchs_own_option_sets_are_there() -> None:
    for name, count in (("adamw", 5), ("sgd", 9)):
        assert sum(each.startswith("torch ") for each in CASES[name].options) == count


def document_params() -> list[torch.Tensor]:
    """The example of the vendor's documents: gradients p / 100, set once; the last parameter has none."""
    kinds = [(2, "float"), (4, "float"), (2, "half"), (4, "half"), (5, "float"), (6, "half")]
    params = [
        getattr(torch.arange(3 * rows).reshape(rows, 3), kind)()
        for rows, kind in [*kinds, (2, "float")]
    ]
    for param in params[:-1]:
        param.requires_grad = True
        param.grad = param.detach().clone() / 100.0
    return params


# In which the published numbers were computed: the states of float16 parameters were float16.
PUBLISHED_PRECISION = {"state_dtype": "param"}
# Printed with three decimals; a sum of float16 numbers is a float16: two neighbours are this far apart.
ROUNDING = {2: 2.0**-7, 3: 2.0**-5, 5: 2.0**-3}


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=name) for name, case in CASES.items() if case.published]
)
def test_like_the_published_sums(case: Case) -> None:
    assert case.published is not None
    options, sums = case.published
    params = document_params()
    optimizer = case.make(params, **options, **PUBLISHED_PRECISION, backend="reference")
    with torch.no_grad():
        for _ in range(10):
            optimizer.step()
    for number, expected in enumerate(sums):
        total = params[number].detach().sum().item()
        assert abs(total - expected) <= ROUNDING.get(number, 0.0) + 6e-4, (number, total, expected)
    assert torch.equal(params[-1], torch.arange(6.0).reshape(2, 3))


# What torch's own tests feed these optimizers to see them fail.
ERRORS = [
    pytest.param(
        CASES[name], each, id=f"{name}-{each.optimizer_error_input.desc}".replace(" ", "_")
    )
    for name in ("adamw", "sgd")
    for info in optim_db
    if info.optim_cls is CASES[name].torch_kind
    for each in info.optim_error_inputs_func(device="cpu", dtype=torch.float32)
    # How torch runs a step (foreach) is not an option here, and a tensor beta is as good as its value.
    if "foreach" not in each.optimizer_error_input.kwargs
    and not any(map(torch.is_tensor, each.optimizer_error_input.kwargs.get("betas", ())))
]


@pytest.mark.parametrize(("case", "error"), ERRORS)
def test_refuses_what_torch_refuses(case: Case, error: object) -> None:
    wrong = error.optimizer_error_input
    params = wrong.params if wrong.params is not None else make_params([(2, 3)])
    # torch writes of a "Tensor lr", here the message names the option like every other.
    message = "lr must be" if "Tensor lr" in error.error_regex else error.error_regex
    if issubclass(error.error_type, Warning):
        with pytest.warns(error.error_type, match=message):
            case.make(params, **wrong.kwargs)
    else:
        with pytest.raises(error.error_type, match=message):
            case.make(params, **wrong.kwargs)


def test_there_are_errors_to_try() -> None:
    assert len(ERRORS) >= 14
