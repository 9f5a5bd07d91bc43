"""Defects that are known and not mended yet; the one place to look when a strict xfail passes.

A row goes away in the change that mends its defect: ``strict=True`` fails the suite until it does.
"""

# What the fuzzer leaves out, and why; `make fuzz FUZZ_ARGS=--all` leaves nothing out.
AVOIDED: dict[str, str] = {
    "shared two-pass": "LAMB and AdamP take the norms of all parameters before any update",
    "gradient views its parameter": "a gradient that views its parameter in another order is misread",
    "infinite parameter without decay": "0 * inf: SGD and BertAdam compute a decay of 0",
    "nonsense options": "an lr of NaN, set in a group after some steps, is not refused",
    "tensor lr of 1 or 2 dimensions": "an lr tensor with one element in 1 or 2 dimensions is refused",
}

# Tests that fail, by a regular expression that is searched for in their id, and why.
FAILING: dict[str, str] = {
    r"test_options_are_looked_at_before_parameters": "parameters are looked at before options",
    r"test_no_cyclic_references": "optimizer and planner refer to each other",
    r"test_what_the_user_drops_is_gone\[native": "the remembered plan keeps states and parameters alive",
    r"test_a_pre_hook_that_raises_leaves_no_scale_behind": "grad_scale stays after a pre-hook raises",
    r"test_a_rate_of_one_element\[[12]": "an lr tensor with one element in 1 or 2 dimensions is refused",
    r"test_schedulers_write_into_a_tensor\[1": "an lr tensor with one element in 1 dimension is refused",
    r"test_every_scheduler\[(OneCycleLR|CyclicLR)-bert_adam": "BertAdam's groups have no betas",
    r"test_cycled_momentum_is_what_the_step_uses\[.*-bert_adam": "BertAdam's groups have no betas",
    r"test_what_the_user_keeps_in_the_state_is_kept": "entries of the user in the state are refused",
    r"test_a_post_hook_may_return_a_new_dictionary": "state_dict post hooks run before steps are tensors",
    r"test_an_overflow_is_known_as_a_skipped_step": "Accelerate sees a fused step as made, also torch's own",
}
