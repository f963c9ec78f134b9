"""The pages: what the swarm does, and what a person may do about it."""

from oaken_swarm.cockpit.cockpit import Cockpit

__all__ = ["Cockpit"]
