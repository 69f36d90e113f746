"""A bounded input here and now: record batches in, private releases out, without a runner.

The steps are those that a pipeline has, so with the same noise key the releases, the ledger and the
state are the same. Each kind of plan has a module, which imports what that kind needs.
"""
