"""Audits of devices: what an operator learns of one from all that it reports."""
