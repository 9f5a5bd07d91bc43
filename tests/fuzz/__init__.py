"""A fuzzer: random optimizers, tensors and changes between steps against formulas with bounded errors."""
