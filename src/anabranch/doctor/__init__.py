"""The doctor: looks at work directories, stores and checkpoints, and says what is wrong with them."""
