"""Per-record privacy: the loss of a record stays within a budget that is a function of the record.

The budget itself is secret, for it tells about the record. Values and budgets in, statistics out.
"""
