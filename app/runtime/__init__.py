"""This process and its peers: platform, process group, failures in words, random states, signals."""
