"""Orders beside the random one: those of other loaders, to see what they lose, and sampling."""
