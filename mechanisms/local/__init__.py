"""Local privacy: devices perturb, and the server never sees a raw value."""
