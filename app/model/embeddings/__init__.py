"""Tables of every kind: which there are, their initial values, and the module that looks up in them."""
