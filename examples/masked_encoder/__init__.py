"""A chunked speech encoder with a mask as an input, as models on the Hugging Face hub have it."""
