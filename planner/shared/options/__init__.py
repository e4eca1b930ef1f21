"""The options of every command, each declared once: a record for a command, beside what several share."""
