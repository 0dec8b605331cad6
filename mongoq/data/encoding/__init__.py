"""Values as BSON and back: payloads, typed payloads, ids, and the texts of errors.

``codec`` encodes and decodes payloads: start there. ``typed`` does so for pydantic types; ``error_text`` limits the
stored size of a failure and its traceback.
"""
