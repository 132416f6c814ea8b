"""This process and its peers: platform, process group, random states, signals, environment profiles."""
