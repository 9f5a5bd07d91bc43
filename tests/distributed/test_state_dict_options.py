"""get/set_optimizer_state_dict of torch.distributed.checkpoint: every set of options, sharded and not."""

import pytest
import torch
from processes import check_all
from state_dict_options import all_option_sets
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)


@pytest.mark.parametrize("sharded", [True, False], ids=["fsdp", "replicated"])
def test_every_set_of_options(sharded: bool) -> None:
    check_all(2, all_option_sets, sharded)


def test_torch_cannot_load_whole_flattened_states() -> None:
    """The reason why that set is left out; seen with 2.13.0. If this fails, take it in."""
    options = StateDictOptions(full_state_dict=True, flatten_optimizer_state_dict=True)
    net = torch.nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    saved = get_optimizer_state_dict(net, optimizer, options=options)
    with pytest.raises(KeyError):
        set_optimizer_state_dict(net, optimizer, saved, options=options)
