"""Plugins that come with Oaken. Each is absent until it is configured."""
