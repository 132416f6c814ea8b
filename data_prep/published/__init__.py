"""Small public datasets whose splits a paper fixed: their files fetched by name, their rows written as it drew them."""
