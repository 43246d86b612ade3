"""A convolution in which every channel is made of one, over frames whose channels lie side by side."""
