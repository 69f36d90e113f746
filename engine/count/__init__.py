"""Bounds what a user contributes, and counts it by slot, bin and class of requirements."""
