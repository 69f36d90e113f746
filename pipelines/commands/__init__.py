"""The commands: a module each, which the command line runs."""
