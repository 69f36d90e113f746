"""Everything between events and results that needs neither Beam nor files nor a clock."""
