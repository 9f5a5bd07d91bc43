"""One step: who takes part, what is refused, which buckets are made, and in which order they run."""
