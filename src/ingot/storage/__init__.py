"""How numbers are kept between steps: their types, master copies and rounding."""
