"""Jobs: what they are, how they are checked and packed, who drives them."""
