"""Recipes: pipelines as plain data, in a mapping or in a file of JSON or YAML.

``recipe`` reads a recipe and reports all its faults at once: start there. ``parts`` has the parts and their keys,
``file`` reads the file, and ``size`` limits the size of a recipe.
"""
