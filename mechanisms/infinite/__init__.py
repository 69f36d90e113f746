"""Privacy of users forever: unbounded releases for one budget that never comes back."""
