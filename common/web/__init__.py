"""What every HTTP server here shares: who may ask, connections, errors, and the files of pages."""
