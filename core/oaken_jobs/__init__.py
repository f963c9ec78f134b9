"""Oaken's job store: durable jobs, leases and their history. Knows no web framework and no MCP."""

__version__ = "0.1.0"
