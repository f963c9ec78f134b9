"""What has happened, for whoever wants to know: typed events, the bus that hands them out, and their log in a file."""
