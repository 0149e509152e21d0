"""Tools of developers: nothing of it is in the layer."""
