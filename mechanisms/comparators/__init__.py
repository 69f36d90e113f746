"""Mechanisms that are there to compare with, never advised."""
