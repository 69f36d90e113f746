"""From events to counts: codes, bounding, counting by class or by cohort, and what was lost."""
