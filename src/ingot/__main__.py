"""Lets `python -m ingot ...` do the same as the `ingot` command."""

import sys

from ingot.cli import main

sys.exit(main())
