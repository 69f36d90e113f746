"""What runs on devices: one, or a whole population of them."""
