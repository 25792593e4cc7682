"""From a position in a random order to bytes in memory: records, order, plan, reader, loader."""
