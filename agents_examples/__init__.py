"""Agents to run and to copy. Each is one file that needs nothing of Oaken but its client."""
