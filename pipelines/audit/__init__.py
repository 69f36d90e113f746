"""A black-box audit of a configuration: what an attacker can prove that releases tell of a user."""
