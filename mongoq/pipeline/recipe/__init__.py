"""Recipes: pipelines as plain data, in a mapping or in a file of JSON or YAML.

``recipe`` reads one and names all its faults at once: start there. ``parts`` has the parts and their keys, ``file``
reads the file, and ``size`` bounds what a file may hold.
"""
