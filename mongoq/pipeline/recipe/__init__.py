"""Recipes: pipelines as plain data, in a mapping or in a file of JSON or YAML.

``recipe`` reads a recipe and reports all its faults at once: start there. ``yaml_text`` reads YAML.
"""
