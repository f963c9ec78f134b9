"""The front door: the command line, and the process that it starts."""
