"""What a layer is made of, and what of it a rank holds."""
