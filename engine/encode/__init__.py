"""From columns of a record batch to integers, or to a dead letter with its reason."""
