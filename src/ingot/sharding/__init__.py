"""Where the other parts of a tensor are, and sums across the processes that hold them."""
