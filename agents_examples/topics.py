"""The labels that both triage agents choose from."""

from __future__ import annotations

TOPICS = {
    "install": "how to install, set up, build and run the program; commands, dependencies, first steps",
    "design": "architecture and design: how the parts fit together, modules, decisions and why they were made",
    "interface": "reference of an interface: routes, arguments, fields, types, errors and what they return",
    "contributing": "how to contribute: tests, style, reviews, commits, releases, rules for developers",
    "changes": "release notes and change log: what was added, changed, fixed and removed in a version",
    "legal": "license, copyright, warranty, permission to use, copy and distribute",
    "agents": "agents and assistants that use tools, models, prompts, leases and jobs",
    "other": "letters, stories, recipes, travel, everyday life",
}
CHARACTERS = 4000
"""What a text is about shows in its beginning."""
