"""What follows from the stream's length alone: how far one must look at it until nothing new can show."""
