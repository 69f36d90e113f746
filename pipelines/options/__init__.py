"""The options of every command, each declared once: parsed, checked and listed in the help."""
