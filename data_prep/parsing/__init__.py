"""Parsers from bytes to typed columns, for Criteo's rows and for the user's own files."""
