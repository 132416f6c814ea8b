"""Distinct values of a column counted, merged and ranked in bounded memory."""
