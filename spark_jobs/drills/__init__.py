"""Drills and campaigns: break it on purpose, let it recover, and say what came of it."""
