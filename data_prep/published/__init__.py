"""Small public datasets with the split of a paper: downloads their files, and writes rows as the paper drew them."""
