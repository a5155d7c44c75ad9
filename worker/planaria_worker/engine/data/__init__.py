"""Text files to microbatches, without torch: files, tokens, token file, order of samples."""
