"""Tables of traced calls: from an op's name to the function that drafts it."""
