"""What an optimizer declares: its options, its states, its scalars and the math of one element."""
