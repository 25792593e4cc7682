"""Runs: from a recipe to processes, a loop, and a folder of results."""
