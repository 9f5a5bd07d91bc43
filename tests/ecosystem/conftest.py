"""Programs of others that train with our optimizers; `make ecosystem` installs them in an environment of their own."""

import os
from importlib.util import find_spec

# Nothing is fetched: every model is made here, small and with random weights.
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_DATASETS_OFFLINE="1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

PROGRAMS = ("transformers", "accelerate", "peft", "pytorch_lightning")
if not all(map(find_spec, PROGRAMS)):
    collect_ignore_glob = ["test_*.py"]
