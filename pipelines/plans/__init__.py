"""What the options of a command ask for, as a plan of the engine; and the places that it reads."""
